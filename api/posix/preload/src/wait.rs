//! epoll, poll, select and signals.
