//! The operations of a program: each is one call, with its arguments as words.
//!
//! 1. The table of `operations!` names every operation and its fields. The macro derives the type,
//!    its text and the parser from it, so the two forms cannot differ.
//! 2. Reading a text and writing it again gives the same text. A failed program is kept in that
//!    form.
//! 3. [`words`] defines the kinds of argument, [`options`] the socket options.
//!
//! [`crate::execute`] carries the operations out. Nothing here calls the kernel.

pub(crate) mod options;
pub(crate) mod words;

use std::fmt::{self, Display, Formatter};

use options::SocketOption;
use words::{
    Access, Address, Control, Events, Family, Faulty, InHandler, Kind, MessageFlags, Name, OpenFlags,
    Reserve, Sharing, Slot, SocketFlags, StreamMode, VectorFlags, Watched, Whence, Word,
};

macro_rules! operations {
    ($( $(#[$doc:meta])* $variant:ident = $name:literal { $( $field:ident : $type:ty ),* $(,)? } )*) => {
        /// One call of a program.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) enum Operation {
            $( $(#[$doc])* $variant { $( #[doc = concat!("The ", stringify!($field), ".")] $field: $type ),* } ),*
        }

        impl Operation {
            /// Reads what `Display` writes, from its words.
            pub(crate) fn read<'t>(words: &mut impl Iterator<Item = &'t str>) -> Option<Self> {
                match words.next()? {
                    $( $name => Some(Self::$variant { $( $field: <$type as Word>::read(words.next()?)? ),* }), )*
                    _ => None,
                }
            }
        }

        impl Display for Operation {
            fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                match self {
                    $( Self::$variant { $( $field ),* } => {
                        f.write_str($name)?;
                        $( write!(f, " {}", $field)?; )*
                        Ok(())
                    } )*
                }
            }
        }
    };
}

operations! {
    /// `socket`.
    Socket = "socket" { to: Slot, family: Family, kind: Kind, flags: SocketFlags, protocol: i64 }
    /// `bind`.
    Bind = "bind" { fd: Slot, address: Address }
    /// `listen`.
    Listen = "listen" { fd: Slot, backlog: i64 }
    /// `connect`.
    Connect = "connect" { fd: Slot, address: Address }
    /// `accept` with an address buffer of `room` bytes, or without one (-1).
    Accept = "accept" { fd: Slot, to: Slot, room: i64 }
    /// `accept4` without an address buffer.
    Accept4 = "accept4" { fd: Slot, to: Slot, flags: SocketFlags }
    /// `getsockname` with a buffer of `room` bytes.
    Getsockname = "getsockname" { fd: Slot, room: i64 }
    /// `getpeername` with a buffer of `room` bytes.
    Getpeername = "getpeername" { fd: Slot, room: i64 }
    /// `read`.
    Read = "read" { fd: Slot, length: i64 }
    /// `write`.
    Write = "write" { fd: Slot, length: i64 }
    /// `readv` into two buffers.
    Readv = "readv" { fd: Slot, first: i64, second: i64 }
    /// `writev` of two buffers.
    Writev = "writev" { fd: Slot, first: i64, second: i64 }
    /// `recv`.
    Recv = "recv" { fd: Slot, length: i64, flags: MessageFlags }
    /// `send`.
    Send = "send" { fd: Slot, length: i64, flags: MessageFlags }
    /// `recvfrom` with an address buffer of `room` bytes.
    Recvfrom = "recvfrom" { fd: Slot, length: i64, flags: MessageFlags, room: i64 }
    /// `sendto` with an address.
    Sendto = "sendto" { fd: Slot, length: i64, flags: MessageFlags, address: Address }
    /// `recvmsg` into two buffers, with room for an address and for control data.
    Recvmsg = "recvmsg" { fd: Slot, first: i64, second: i64, flags: MessageFlags }
    /// `sendmsg` of two buffers.
    Sendmsg = "sendmsg" { fd: Slot, first: i64, second: i64, flags: MessageFlags }
    /// `recvmmsg`.
    Recvmmsg = "recvmmsg" { fd: Slot, count: i64, length: i64, flags: MessageFlags }
    /// `sendmmsg`.
    Sendmmsg = "sendmmsg" { fd: Slot, count: i64, length: i64, flags: MessageFlags }
    /// A call with a null pointer.
    Fault = "fault" { call: Faulty, fd: Slot }
    /// `shutdown`.
    Shutdown = "shutdown" { fd: Slot, how: i64 }
    /// `close`. The slot keeps the number, so that it can be closed twice.
    Close = "close" { fd: Slot }
    /// `close_range` over the descriptors of two slots.
    CloseRange = "close_range" { from: Slot, to: Slot }
    /// `dup`.
    Dup = "dup" { fd: Slot, to: Slot }
    /// `dup2` onto the descriptor of a slot.
    Dup2 = "dup2" { fd: Slot, onto: Slot }
    /// `dup3` onto the descriptor of a slot.
    Dup3 = "dup3" { fd: Slot, onto: Slot, flags: SocketFlags }
    /// `F_DUPFD` or `F_DUPFD_CLOEXEC` from a lowest number.
    DupFrom = "dup_from" { fd: Slot, lowest: i64, cloexec: i64, to: Slot }
    /// `F_GETFL`.
    GetStatus = "getfl" { fd: Slot }
    /// `F_SETFL`.
    SetStatus = "setfl" { fd: Slot, flags: SocketFlags }
    /// `F_GETFD`.
    GetDescriptor = "getfd" { fd: Slot }
    /// `F_SETFD`.
    SetDescriptor = "setfd" { fd: Slot, cloexec: i64 }
    /// `FIONBIO`.
    Fionbio = "fionbio" { fd: Slot, on: i64 }
    /// `FIONREAD`.
    Fionread = "fionread" { fd: Slot }
    /// `SIOCOUTQ`, once the peer has acknowledged every byte.
    Outq = "outq" { fd: Slot }
    /// `setsockopt` with `length` bytes of a number.
    Setsockopt = "setsockopt" { fd: Slot, option: SocketOption, value: i64, length: i64 }
    /// `getsockopt` with room for `room` bytes.
    Getsockopt = "getsockopt" { fd: Slot, option: SocketOption, room: i64 }
    /// `SO_LINGER`.
    Linger = "linger" { fd: Slot, on: i64, seconds: i64 }
    /// `SO_RCVTIMEO` in milliseconds.
    ReceiveTimeout = "rcvtimeo" { fd: Slot, milliseconds: i64 }
    /// `SO_SNDTIMEO` in milliseconds.
    SendTimeout = "sndtimeo" { fd: Slot, milliseconds: i64 }
    /// `poll`.
    Poll = "poll" { watched: Watched, milliseconds: i64 }
    /// `ppoll`.
    Ppoll = "ppoll" { watched: Watched, milliseconds: i64 }
    /// `select`.
    Select = "select" { watched: Watched, milliseconds: i64 }
    /// `pselect`.
    Pselect = "pselect" { watched: Watched, milliseconds: i64 }
    /// `epoll_create1`.
    EpollCreate = "epoll_create" { to: Slot, flags: SocketFlags }
    /// `epoll_ctl`; the events carry the number of the slot.
    EpollControl = "epoll_ctl" { epoll: Slot, control: Control, fd: Slot, events: Events }
    /// `epoll_wait`.
    EpollWait = "epoll_wait" { epoll: Slot, most: i64, milliseconds: i64 }
    /// `epoll_pwait`.
    EpollPwait = "epoll_pwait" { epoll: Slot, most: i64, milliseconds: i64 }
    /// `pipe2`.
    Pipe = "pipe" { reader: Slot, writer: Slot, flags: SocketFlags }
    /// `eventfd`.
    Eventfd = "eventfd" { to: Slot, value: i64, flags: SocketFlags }
    /// A file in memory of `length` bytes, its position at the start.
    Memfd = "memfd" { to: Slot, length: i64 }
    /// `socketpair` of Unix stream sockets.
    Socketpair = "socketpair" { first: Slot, second: Slot, flags: SocketFlags }
    /// `sendfile` from an offset, or from the position of the file (-1).
    Sendfile = "sendfile" { out: Slot, input: Slot, offset: i64, count: i64 }
    /// `splice` without offsets.
    Splice = "splice" { input: Slot, out: Slot, length: i64 }
    /// `sendmsg` of one byte with `SCM_RIGHTS`.
    SendDescriptor = "send_fd" { via: Slot, fd: Slot }
    /// `recvmsg` of one byte with `SCM_RIGHTS`.
    ReceiveDescriptor = "recv_fd" { via: Slot, to: Slot, flags: MessageFlags }
    /// `fork`; the child is actor `c1` or `c2`.
    Fork = "fork" { child: i64 }
    /// A child executes the executor anew and continues with the descriptors that it inherits.
    Execute = "exec" {}
    /// A child exits.
    Exit = "exit" { status: i64 }
    /// Whether interrupted calls are restarted (`SA_RESTART`), for the whole process.
    Restart = "restart" { on: i64 }
    /// Sends until the socket is full; the number of bytes is not compared.
    Fill = "fill" { fd: Slot }
    /// Receives exactly what `fill` sent from the other slot.
    Drain = "drain" { fd: Slot, sender: Slot }
    /// `open` of a name in the folder of the executor.
    Open = "open" { to: Slot, name: Name, access: Access, flags: OpenFlags }
    /// `mkstemp` in the folder of the executor.
    Mkstemp = "mkstemp" { to: Slot }
    /// `pread`.
    Pread = "pread" { fd: Slot, length: i64, offset: i64 }
    /// `pwrite`.
    Pwrite = "pwrite" { fd: Slot, length: i64, offset: i64 }
    /// `preadv` into two buffers.
    Preadv = "preadv" { fd: Slot, first: i64, second: i64, offset: i64 }
    /// `pwritev` of two buffers.
    Pwritev = "pwritev" { fd: Slot, first: i64, second: i64, offset: i64 }
    /// `preadv2` into two buffers.
    Preadv2 = "preadv2" { fd: Slot, first: i64, second: i64, offset: i64, flags: VectorFlags }
    /// `pwritev2` of two buffers.
    Pwritev2 = "pwritev2" { fd: Slot, first: i64, second: i64, offset: i64, flags: VectorFlags }
    /// `lseek`.
    Lseek = "lseek" { fd: Slot, offset: i64, whence: Whence }
    /// `ftruncate`.
    Ftruncate = "ftruncate" { fd: Slot, length: i64 }
    /// `truncate`.
    Truncate = "truncate" { name: Name, length: i64 }
    /// `fallocate`.
    Fallocate = "fallocate" { fd: Slot, how: Reserve, offset: i64, length: i64 }
    /// `fstat`: kind, size and links.
    Fstat = "fstat" { fd: Slot }
    /// `stat`: kind, size and links.
    Stat = "stat" { name: Name }
    /// `fsync`.
    Fsync = "fsync" { fd: Slot }
    /// `fdatasync`.
    Fdatasync = "fdatasync" { fd: Slot }
    /// `unlink`.
    Unlink = "unlink" { name: Name }
    /// `rename`.
    Rename = "rename" { from: Name, to: Name }
    /// `link`.
    Link = "link" { from: Name, to: Name }
    /// `copy_file_range`, at the position where an offset is -1.
    CopyRange = "copy_file_range" { input: Slot, from: i64, out: Slot, to: i64, length: i64 }
    /// `mmap` for reading and writing, or for reading alone.
    Map = "mmap" { map: i64, fd: Slot, offset: i64, length: i64, sharing: Sharing }
    /// Reads mapped memory; memory that cannot be read is an error.
    MapRead = "map_read" { map: i64, at: i64, length: i64 }
    /// Writes mapped memory; memory that cannot be written is an error.
    MapWrite = "map_write" { map: i64, at: i64, length: i64 }
    /// `msync`.
    Msync = "msync" { map: i64 }
    /// `munmap`.
    Unmap = "munmap" { map: i64 }
    /// `fopen`.
    StreamOpen = "fopen" { stream: i64, name: Name, mode: StreamMode }
    /// `fdopen`.
    StreamOf = "fdopen" { stream: i64, fd: Slot, mode: StreamMode }
    /// `fread`.
    StreamRead = "fread" { stream: i64, length: i64 }
    /// `fwrite`.
    StreamWrite = "fwrite" { stream: i64, length: i64 }
    /// `fflush`.
    StreamFlush = "fflush" { stream: i64 }
    /// `fseek`.
    StreamSeek = "fseek" { stream: i64, offset: i64, whence: Whence }
    /// `fclose`.
    StreamClose = "fclose" { stream: i64 }
    /// `setrlimit` of the size of files, without a limit if negative.
    Limit = "limit" { bytes: i64 }
    /// A call within a signal handler.
    InHandler = "in_handler" { call: InHandler, fd: Slot, length: i64 }
}
