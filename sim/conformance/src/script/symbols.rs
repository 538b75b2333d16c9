//! The names that scripts use for numbers, and those of errors.

/// The number behind a name.
pub(super) fn symbol(name: &str) -> Option<i64> {
    NAMES.iter().find(|entry| entry.0 == name).map(|entry| i64::from(entry.1))
}

/// The number of an error.
pub fn errno_of(name: &str) -> Option<i32> {
    ERRORS.iter().find(|entry| entry.0 == name).map(|entry| entry.1)
}

/// The name of an error.
pub fn errno_name(number: i32) -> String {
    ERRORS.iter().find(|entry| entry.1 == number).map_or_else(|| number.to_string(), |entry| entry.0.into())
}

const NAMES: [(&str, i32); 47] = [
    ("AF_INET", libc::AF_INET),
    ("AF_INET6", libc::AF_INET6),
    ("SOCK_STREAM", libc::SOCK_STREAM),
    ("SOCK_DGRAM", libc::SOCK_DGRAM),
    ("SOCK_NONBLOCK", libc::SOCK_NONBLOCK),
    ("IPPROTO_TCP", libc::IPPROTO_TCP),
    ("IPPROTO_UDP", libc::IPPROTO_UDP),
    ("IPPROTO_IP", libc::IPPROTO_IP),
    ("SOL_IP", libc::IPPROTO_IP),
    ("SOL_TCP", libc::IPPROTO_TCP),
    ("SOL_SOCKET", libc::SOL_SOCKET),
    ("SO_REUSEADDR", libc::SO_REUSEADDR),
    ("SO_KEEPALIVE", libc::SO_KEEPALIVE),
    ("SO_LINGER", libc::SO_LINGER),
    ("SO_ERROR", libc::SO_ERROR),
    ("SO_TYPE", libc::SO_TYPE),
    ("SO_ACCEPTCONN", libc::SO_ACCEPTCONN),
    ("SO_RCVBUF", libc::SO_RCVBUF),
    ("SO_SNDBUF", libc::SO_SNDBUF),
    ("TCP_NODELAY", libc::TCP_NODELAY),
    ("TCP_MAXSEG", libc::TCP_MAXSEG),
    ("TCP_KEEPIDLE", libc::TCP_KEEPIDLE),
    ("TCP_KEEPINTVL", libc::TCP_KEEPINTVL),
    ("TCP_KEEPCNT", libc::TCP_KEEPCNT),
    ("TCP_CORK", libc::TCP_CORK),
    ("TCP_INFO", libc::TCP_INFO),
    ("TCP_CONGESTION", libc::TCP_CONGESTION),
    ("TCP_USER_TIMEOUT", libc::TCP_USER_TIMEOUT),
    ("IP_TOS", libc::IP_TOS),
    ("O_NONBLOCK", libc::O_NONBLOCK),
    ("O_RDWR", libc::O_RDWR),
    ("F_GETFL", libc::F_GETFL),
    ("F_SETFL", libc::F_SETFL),
    ("SHUT_RD", libc::SHUT_RD),
    ("SHUT_WR", libc::SHUT_WR),
    ("SHUT_RDWR", libc::SHUT_RDWR),
    ("MSG_PEEK", libc::MSG_PEEK),
    ("MSG_DONTWAIT", libc::MSG_DONTWAIT),
    ("MSG_NOSIGNAL", libc::MSG_NOSIGNAL),
    ("POLLIN", libc::POLLIN as i32),
    ("POLLOUT", libc::POLLOUT as i32),
    ("POLLERR", libc::POLLERR as i32),
    ("POLLHUP", libc::POLLHUP as i32),
    ("POLLRDHUP", libc::POLLRDHUP as i32),
    ("POLLNVAL", libc::POLLNVAL as i32),
    ("FIONREAD", libc::FIONREAD as i32),
    ("TIOCOUTQ", libc::TIOCOUTQ as i32),
];

const ERRORS: [(&str, i32); 24] = [
    ("EAGAIN", libc::EAGAIN),
    ("EWOULDBLOCK", libc::EAGAIN),
    ("EINPROGRESS", libc::EINPROGRESS),
    ("EALREADY", libc::EALREADY),
    ("EISCONN", libc::EISCONN),
    ("ENOTCONN", libc::ENOTCONN),
    ("ECONNREFUSED", libc::ECONNREFUSED),
    ("ECONNRESET", libc::ECONNRESET),
    ("ECONNABORTED", libc::ECONNABORTED),
    ("ETIMEDOUT", libc::ETIMEDOUT),
    ("EHOSTUNREACH", libc::EHOSTUNREACH),
    ("ENETUNREACH", libc::ENETUNREACH),
    ("EPIPE", libc::EPIPE),
    ("EBADF", libc::EBADF),
    ("EINVAL", libc::EINVAL),
    ("EADDRINUSE", libc::EADDRINUSE),
    ("EADDRNOTAVAIL", libc::EADDRNOTAVAIL),
    ("EAFNOSUPPORT", libc::EAFNOSUPPORT),
    ("EPROTONOSUPPORT", libc::EPROTONOSUPPORT),
    ("ENOPROTOOPT", libc::ENOPROTOOPT),
    ("ENOBUFS", libc::ENOBUFS),
    ("EMSGSIZE", libc::EMSGSIZE),
    ("ENOTTY", libc::ENOTTY),
    ("EOPNOTSUPP", libc::EOPNOTSUPP),
];
