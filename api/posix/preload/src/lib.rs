//! What `sietch run` preloads: the C library's calls, each forwarded to `sietch-posix`.
