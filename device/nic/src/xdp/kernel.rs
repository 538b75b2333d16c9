//! `bpf(2)` by hand: maps, programs, and finding both again after a restart.
//!
//! 1. Each command has its own `#[repr(C)]` attribute block, the leading part of the kernel's
//!    `union bpf_attr`. The kernel takes any prefix of the union and reads the rest as zero, so
//!    older kernels accept them too.
//! 2. Every object is an [`OwnedFd`]. An object lives while an fd, a program that uses it, or an
//!    interface it is attached to lives. So closing the fds of an attached program changes nothing
//!    on the wire.
//! 3. A program is loaded without a log first. Only when the verifier refuses it is it offered
//!    again with a log buffer, for the error message.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use super::assembler::Instruction;
use super::error::XdpError;

#[cfg(test)]
mod test_run;

const MAP_CREATE: libc::c_int = 0;
const MAP_LOOKUP_ELEM: libc::c_int = 1;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const MAP_DELETE_ELEM: libc::c_int = 3;
const MAP_GET_NEXT_KEY: libc::c_int = 4;
const PROG_LOAD: libc::c_int = 5;
const PROG_GET_FD_BY_ID: libc::c_int = 13;
const MAP_GET_FD_BY_ID: libc::c_int = 14;
const OBJ_GET_INFO_BY_FD: libc::c_int = 15;

const PROGRAM_TYPE_XDP: u32 = 6;
/// Room for a name with its final zero (`BPF_OBJ_NAME_LEN`).
const NAME_LENGTH: usize = 16;
/// Sietch's programs name fewer than ten maps; one that names more than this is not Sietch's.
const MAXIMUM_PROGRAM_MAPS: usize = 64;
/// Enough of the verifier's log to see the instruction that it refused and how it came there.
const VERIFIER_LOG_BYTES: usize = 256 << 10;
/// The programs call no helper that is reserved to GPL programs, so they carry the project's own
/// licence.
const LICENCE: &[u8] = b"Apache-2.0 OR MIT\0";

/// `BPF_F_XDP_HAS_FRAGS`
const HAS_FRAGMENTS: u32 = 1 << 5;

/// `BPF_F_NO_PREALLOC`, which an LPM trie demands.
pub(crate) const NO_PREALLOCATION: u32 = 1;
/// `BPF_F_RDONLY_PROG`: programs may read the map and not write it.
pub(crate) const READ_ONLY_TO_PROGRAMS: u32 = 1 << 7;

/// The kinds of map that Sietch uses (`enum bpf_map_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum MapKind {
    /// Any key to any value.
    Hash = 1,
    /// Index to value.
    Array = 2,
    /// Index to one value a CPU.
    PerCpuArray = 6,
    /// Longest matching prefix.
    PrefixTrie = 11,
    /// Index to interface.
    Devices = 14,
    /// Index to AF_XDP socket.
    Sockets = 17,
    /// Any 32-bit key to interface.
    DeviceHash = 25,
}

/// Name and shape of a map. Two maps with the same shape and name play the same role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MapShape {
    /// At most 15 letters, digits, `_` or `.`.
    pub name: &'static str,
    /// Kind.
    pub kind: MapKind,
    /// Bytes of a key.
    pub key: u32,
    /// Bytes of a value (of one CPU's value, where there is one a CPU).
    pub value: u32,
    /// Greatest number of entries.
    pub entries: u32,
    /// `BPF_F_*`.
    pub flags: u32,
}

fn bpf<T>(command: libc::c_int, attributes: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: `attributes` is one of the `#[repr(C)]` prefixes of `union bpf_attr` below, passed by
    // an exclusive reference and with its true size; each call site keeps alive the buffers that it
    // points at.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn own(result: libc::c_long) -> OwnedFd {
    // SAFETY: the kernel has just returned this fd, and no other code has its number. An fd fits an
    // i32.
    unsafe { OwnedFd::from_raw_fd(result as RawFd) }
}

fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> XdpError {
    let what = what.into();
    move |source| XdpError::Bpf { what, source }
}

fn encode_name(name: &str) -> [u8; NAME_LENGTH] {
    let mut field = [0; NAME_LENGTH];
    // One byte stays zero, whatever the name.
    for (to, from) in field[..NAME_LENGTH - 1].iter_mut().zip(name.bytes()) {
        *to = from;
    }
    field
}

fn decode_name(field: &[u8; NAME_LENGTH]) -> String {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(NAME_LENGTH);
    String::from_utf8_lossy(&field[..end]).into_owned()
}

fn address<T: ?Sized>(buffer: &T) -> u64 {
    std::ptr::from_ref(buffer).cast::<u8>().expose_provenance() as u64
}

fn address_mut<T: ?Sized>(buffer: &mut T) -> u64 {
    std::ptr::from_mut(buffer).cast::<u8>().expose_provenance() as u64
}

#[repr(C)]
struct CreateMap {
    kind: u32,
    key: u32,
    value: u32,
    entries: u32,
    flags: u32,
    inner_fd: u32,
    numa_node: u32,
    name: [u8; NAME_LENGTH],
}

#[repr(C)]
struct Element {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct LoadProgram {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    licence: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; NAME_LENGTH],
}

#[repr(C)]
struct ById {
    id: u32,
    next_id: u32,
    open_flags: u32,
}

#[repr(C)]
struct GetInfo {
    fd: u32,
    length: u32,
    info: u64,
}

/// The leading part of `struct bpf_prog_info`.
#[repr(C)]
#[derive(Default)]
struct RawProgramInfo {
    kind: u32,
    id: u32,
    tag: [u8; 8],
    native_length: u32,
    translated_length: u32,
    native: u64,
    translated: u64,
    load_time: u64,
    uid: u32,
    map_count: u32,
    maps: u64,
    name: [u8; NAME_LENGTH],
}

/// The leading part of `struct bpf_map_info`.
#[repr(C)]
#[derive(Default)]
struct RawMapInfo {
    kind: u32,
    id: u32,
    key: u32,
    value: u32,
    entries: u32,
    flags: u32,
    name: [u8; NAME_LENGTH],
}

/// A map.
#[derive(Debug)]
pub(crate) struct Map {
    fd: OwnedFd,
    shape: MapShape,
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Map {
    /// Makes a map, all zero or empty.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(crate) fn create(shape: MapShape) -> Result<Self, XdpError> {
        let mut attributes = CreateMap {
            kind: shape.kind as u32,
            key: shape.key,
            value: shape.value,
            entries: shape.entries,
            flags: shape.flags,
            inner_fd: 0,
            numa_node: 0,
            name: encode_name(shape.name),
        };
        let fd = bpf(MAP_CREATE, &mut attributes).map_err(failed(format!("create map {}", shape.name)))?;
        Ok(Self { fd: own(fd), shape })
    }

    fn matches(shape: &MapShape, found: &RawMapInfo) -> bool {
        // Of the flags only those requested are compared: the kernel adds its own to device maps.
        found.kind == shape.kind as u32
            && found.key == shape.key
            && found.value == shape.value
            && found.entries == shape.entries
            && found.flags & shape.flags == shape.flags
            && decode_name(&found.name) == shape.name
    }

    fn element(&self, key: &[u8], value: u64, flags: u64) -> Element {
        assert_eq!(
            key.len(),
            self.shape.key as usize,
            "key size of map {}: fixed by its shape, never by input",
            self.shape.name
        );
        Element {
            // An open fd is never negative.
            map_fd: self.fd.as_raw_fd() as u32,
            padding: 0,
            key: address(key),
            value,
            flags,
        }
    }

    /// Reads the value under `key` into `value`; `false` if there is none.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(crate) fn lookup(&self, key: &[u8], value: &mut [u8]) -> Result<bool, XdpError> {
        let needed = match self.shape.kind {
            MapKind::PerCpuArray => possible_cpus()? * self.shape.value.next_multiple_of(8) as usize,
            _ => self.shape.value as usize,
        };
        assert_eq!(
            value.len(),
            needed,
            "value size of map {}: fixed by its shape, never by input",
            self.shape.name
        );
        let mut attributes = self.element(key, address_mut(value), 0);
        match bpf(MAP_LOOKUP_ELEM, &mut attributes) {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(failed(format!("look up in map {}", self.shape.name))(error)),
        }
    }

    /// Stores `value` under `key`, replacing what was there.
    ///
    /// # Errors
    /// The kernel's refusal; `E2BIG` or `ENOSPC` when the map is full.
    pub(crate) fn update(&self, key: &[u8], value: &[u8]) -> Result<(), XdpError> {
        assert_eq!(
            value.len(),
            self.shape.value as usize,
            "value size of map {}: fixed by its shape, never by input",
            self.shape.name
        );
        let mut attributes = self.element(key, address(value), 0);
        bpf(MAP_UPDATE_ELEM, &mut attributes)
            .map(|_| ())
            .map_err(failed(format!("update map {}", self.shape.name)))
    }

    /// Removes `key`; `false` if it was not there.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(crate) fn delete(&self, key: &[u8]) -> Result<bool, XdpError> {
        let mut attributes = self.element(key, 0, 0);
        match bpf(MAP_DELETE_ELEM, &mut attributes) {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(failed(format!("delete from map {}", self.shape.name))(error)),
        }
    }

    /// Every key of a map that nothing else changes meanwhile, in the kernel's order.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(crate) fn keys(&self) -> Result<Vec<Vec<u8>>, XdpError> {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        // The kernel's walk restarts when a key vanishes beneath it: more steps than entries mean
        // just that.
        while keys.len() <= self.shape.entries as usize {
            let mut next = vec![0; self.shape.key as usize];
            let mut attributes = Element {
                map_fd: self.fd.as_raw_fd() as u32,
                padding: 0,
                key: keys.last().map_or(0, |key| address(key.as_slice())),
                value: address_mut(next.as_mut_slice()),
                flags: 0,
            };
            match bpf(MAP_GET_NEXT_KEY, &mut attributes) {
                Ok(_) => keys.push(next),
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(keys),
                Err(error) => {
                    return Err(failed(format!("walk map {}", self.shape.name))(error));
                }
            }
        }
        Err(XdpError::Bpf {
            what: format!("walk map {}", self.shape.name),
            source: io::Error::other("another process changes the map"),
        })
    }
}

/// The buffers of the frames that a program reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffers {
    /// Each in one buffer. An interface whose MTU exceeds a page less headroom does not take the
    /// program.
    One,
    /// In one or several, of which the program sees the first: the headers. Needs Linux 5.18.
    Several,
}

/// A loaded program.
#[derive(Debug)]
pub(crate) struct Program {
    fd: OwnedFd,
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What the kernel knows about a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProgramInfo {
    /// Kernel's id.
    pub id: u32,
    /// Hash of the instructions.
    pub tag: [u8; 8],
    /// Name it was loaded with.
    pub name: String,
    /// Whether it is an XDP program.
    pub is_xdp: bool,
    /// Kernel's ids of the maps it names.
    pub maps: Vec<u32>,
}

impl Program {
    /// Loads an XDP program.
    ///
    /// # Errors
    /// [`XdpError::Verifier`] with the kernel's reasons.
    pub(crate) fn load(
        name: &'static str,
        instructions: &[Instruction],
        buffers: Buffers,
    ) -> Result<Self, XdpError> {
        let source = match Self::try_load(name, instructions, buffers, &mut []) {
            Ok(program) => return Ok(program),
            Err(source) => source,
        };
        let mut log = vec![0; VERIFIER_LOG_BYTES];
        if !matches!(source.raw_os_error(), Some(libc::EPERM))
            && let Ok(program) = Self::try_load(name, instructions, buffers, &mut log)
        {
            return Ok(program);
        }
        let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
        Err(XdpError::Verifier {
            program: name,
            source,
            log: String::from_utf8_lossy(&log[..end]).into_owned(),
        })
    }

    fn try_load(
        name: &str,
        instructions: &[Instruction],
        buffers: Buffers,
        log: &mut [u8],
    ) -> io::Result<Self> {
        let mut attributes = LoadProgram {
            kind: PROGRAM_TYPE_XDP,
            instruction_count: instructions.len() as u32,
            instructions: address(instructions),
            licence: address(LICENCE),
            log_level: u32::from(!log.is_empty()),
            log_size: log.len() as u32,
            log: if log.is_empty() { 0 } else { address_mut(log) },
            kernel_version: 0,
            flags: if buffers == Buffers::Several { HAS_FRAGMENTS } else { 0 },
            name: encode_name(name),
        };
        Ok(Self { fd: own(bpf(PROG_LOAD, &mut attributes)?) })
    }

    /// Finds a loaded program by the kernel's id.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(crate) fn by_id(id: u32) -> Result<Self, XdpError> {
        let mut attributes = ById { id, next_id: 0, open_flags: 0 };
        let fd = bpf(PROG_GET_FD_BY_ID, &mut attributes).map_err(failed(format!("open program {id}")))?;
        Ok(Self { fd: own(fd) })
    }

    /// Queries the kernel about the program.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(crate) fn info(&self) -> Result<ProgramInfo, XdpError> {
        let mut maps = [0_u32; MAXIMUM_PROGRAM_MAPS];
        let mut info = RawProgramInfo {
            map_count: MAXIMUM_PROGRAM_MAPS as u32,
            maps: address_mut(&mut maps),
            ..RawProgramInfo::default()
        };
        let mut attributes = GetInfo {
            fd: self.fd.as_raw_fd() as u32,
            length: size_of::<RawProgramInfo>() as u32,
            info: address_mut(&mut info),
        };
        bpf(OBJ_GET_INFO_BY_FD, &mut attributes).map_err(failed("ask about a program"))?;
        let count = (info.map_count as usize).min(MAXIMUM_PROGRAM_MAPS);
        Ok(ProgramInfo {
            id: info.id,
            tag: info.tag,
            name: decode_name(&info.name),
            is_xdp: info.kind == PROGRAM_TYPE_XDP,
            maps: maps[..count].to_vec(),
        })
    }

    /// Opens the one map of `shape` among the maps that this program names, and says its id.
    ///
    /// # Errors
    /// [`XdpError::Foreign`] if the program has none, or the kernel's refusal.
    pub(crate) fn map(
        &self,
        info: &ProgramInfo,
        ifindex: u32,
        shape: MapShape,
    ) -> Result<(u32, Map), XdpError> {
        for &id in &info.maps {
            let mut attributes = ById { id, next_id: 0, open_flags: 0 };
            let fd = own(bpf(MAP_GET_FD_BY_ID, &mut attributes).map_err(failed(format!("open map {id}")))?);
            let mut found = RawMapInfo::default();
            let mut attributes = GetInfo {
                fd: fd.as_raw_fd() as u32,
                length: size_of::<RawMapInfo>() as u32,
                info: address_mut(&mut found),
            };
            bpf(OBJ_GET_INFO_BY_FD, &mut attributes).map_err(failed("ask about a map"))?;
            if Map::matches(&shape, &found) {
                return Ok((id, Map { fd, shape }));
            }
        }
        Err(XdpError::Foreign {
            ifindex,
            reason: format!(
                "its XDP program {} has no map {} of this version of Sietch",
                info.name, shape.name
            ),
        })
    }
}

/// How many values a per-CPU map holds under one key: CPUs that may ever appear, not those online.
/// It never changes.
///
/// # Errors
/// `/sys` cannot be read or says something unknown.
pub(crate) fn possible_cpus() -> Result<usize, XdpError> {
    const PATH: &str = "/sys/devices/system/cpu/possible";
    static COUNT: OnceLock<usize> = OnceLock::new();
    if let Some(&count) = COUNT.get() {
        return Ok(count);
    }
    let text = std::fs::read_to_string(PATH).map_err(failed(format!("read {PATH}")))?;
    let count = parse_cpu_list(text.trim()).ok_or_else(|| XdpError::Bpf {
        what: format!("read {PATH}"),
        source: io::Error::other(format!("unknown CPU list {text:?}")),
    })?;
    Ok(*COUNT.get_or_init(|| count))
}

/// Number of CPU slots in a list such as `0-3,8`: the kernel numbers them without gaps in per-CPU
/// maps.
fn parse_cpu_list(text: &str) -> Option<usize> {
    let mut count = 0;
    for range in text.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        count += last.checked_sub(first)? + 1;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_counted() {
        assert_eq!(parse_cpu_list("0"), Some(1));
        assert_eq!(parse_cpu_list("0-3,8"), Some(5));
        assert_eq!(parse_cpu_list("3-0"), None);
        assert_eq!(parse_cpu_list(""), None);
    }

    #[test]
    fn names_keep_a_final_zero() {
        assert_eq!(decode_name(&encode_name("sietch_rx")), "sietch_rx");
        assert_eq!(decode_name(&encode_name("a name that is far too long")), "a name that is ");
    }
}
