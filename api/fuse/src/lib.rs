//! A file system of `sietch-fs` as a FUSE mount, for programs that do not link or preload Sietch.
#![forbid(unsafe_code)]
