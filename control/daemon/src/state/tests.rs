use super::*;

/// A directory that is removed at the end of the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sietch-state-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn record(grant: u64) -> GrantRecord {
    let process = Process { pid: 7, start: 8, uid: 9, boot: "b".into() };
    let device = Device::Vsa { size: 4096 };
    GrantRecord { grant, generation: grant, name: "kv".into(), device, process, client: "kv".into() }
}

#[test]
fn a_restart_finds_the_records_and_numbers_never_repeat() {
    let scratch = Scratch::new("keep");
    let (mut state, remembered) = State::open(&scratch.0).unwrap();
    assert!(remembered.grants.is_empty());
    let (first, second) = (state.next().unwrap(), state.next().unwrap());
    assert!(second > first);
    state.keep(&record(first)).unwrap();
    state.keep(&record(second)).unwrap();
    state.forget(first).unwrap();
    state.set_revoked("vnic kv", true).unwrap();
    state.set_revoked("vsa kv", true).unwrap();
    state.set_revoked("vsa kv", false).unwrap();
    let starts = state.starts;
    drop(state);
    let (mut state, remembered) = State::open(&scratch.0).unwrap();
    assert_eq!(remembered.grants.into_values().collect::<Vec<_>>(), [record(second)]);
    assert_eq!(remembered.revoked.into_iter().collect::<Vec<_>>(), ["vnic kv"]);
    assert!(state.next().unwrap() > second);
    assert_eq!(state.starts, starts + 1);
}

#[test]
fn a_corrupt_file_is_refused_with_its_name_and_a_fix() {
    let scratch = Scratch::new("broken");
    let path = scratch.0.join("state.redb");
    let (state, _) = State::open(&scratch.0).unwrap();
    (1..20).for_each(|grant| state.keep(&record(grant)).unwrap());
    drop(state);
    let whole = std::fs::read(&path).unwrap();
    let garbage: Vec<u8> = (0..whole.len()).map(|at| u8::try_from(at * 7 % 251).unwrap()).collect();
    let mut headless = whole.clone();
    headless[..64].fill(0xa5);
    for broken in [garbage, headless, b"not a database".to_vec(), whole[..whole.len() / 3].to_vec()] {
        std::fs::write(&path, &broken).unwrap();
        let error = State::open(&scratch.0).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("state.redb") && error.contains("mv "), "{error}");
        assert_eq!(std::fs::read(&path).unwrap().len(), broken.len(), "the evidence must stay");
    }
}

/// Bytes of a piece of a golden file.
const PIECE: usize = 512;

/// The pieces of a file that are not zero, each behind its number; and the file's length in front.
fn pack(file: &[u8]) -> Vec<u8> {
    let mut packed = u64::try_from(file.len()).unwrap().to_le_bytes().to_vec();
    for (number, piece) in
        file.chunks(PIECE).enumerate().filter(|(_, piece)| piece.iter().any(|byte| *byte != 0))
    {
        packed.extend(u32::try_from(number).unwrap().to_le_bytes());
        packed.extend(piece);
    }
    packed
}

fn unpack(packed: &[u8]) -> Vec<u8> {
    let (length, pieces) = packed.split_first_chunk::<8>().unwrap();
    let mut file = vec![0; usize::try_from(u64::from_le_bytes(*length)).unwrap()];
    for piece in pieces.chunks(4 + PIECE) {
        let (number, bytes) = piece.split_first_chunk::<4>().unwrap();
        let at = u32::from_le_bytes(*number) as usize * PIECE;
        file[at..at + bytes.len()].copy_from_slice(bytes);
    }
    file
}

/// A grant of a VNIC as `sietch.toml` describes it.
fn vnic(grant: u64) -> GrantRecord {
    let text = "[[vnic]]\nname = \"web\"\nuid = 1000\naddress = \"10.83.0.2/24\"\nhost_address = \"10.83.0.1\"\n\
                address6 = \"fd83::2/64\"\nhost_address6 = \"fd83::1\"\ntcp_ports = [\"80\", \"8000-8010\"]\nrate = \"1Gbit/s\"\n";
    let configuration = crate::configuration::Configuration::parse(text, Path::new("sietch.toml")).unwrap();
    let plan = VnicPlan::new(&configuration.vnics[0], grant);
    GrantRecord { name: "web".into(), device: Device::Vnic(Box::new(plan)), ..record(grant) }
}

/// The file of a daemon that knew two grants and a revoked name; with `SIETCH_WRITE_GOLDEN=1` it is
/// made where it does not exist.
fn golden() -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/state/golden/format-1");
    if !path.exists() && std::env::var_os("SIETCH_WRITE_GOLDEN").is_some() {
        let scratch = Scratch::new("golden");
        let (mut state, _) = State::open(&scratch.0).unwrap();
        assert_eq!((state.next().unwrap(), state.next().unwrap()), (1, 2));
        state.keep(&record(1)).unwrap();
        state.keep(&vnic(2)).unwrap();
        state.set_revoked("vsa kv", true).unwrap();
        drop(state);
        std::fs::write(&path, pack(&std::fs::read(scratch.0.join("state.redb")).unwrap())).unwrap();
    }
    unpack(&std::fs::read(path).unwrap())
}

#[test]
fn a_state_of_format_1_opens() {
    let scratch = Scratch::new("released");
    std::fs::write(scratch.0.join("state.redb"), golden()).unwrap();
    let (mut state, remembered) = State::open(&scratch.0).unwrap();
    assert_eq!((state.starts, state.next().unwrap()), (2, 3));
    assert_eq!(remembered.revoked.into_iter().collect::<Vec<_>>(), ["vsa kv"]);
    let mut grants = remembered.grants.into_values();
    assert_eq!(grants.next(), Some(record(1)));
    let (mut found, mut expected) = (grants.next().unwrap(), vnic(2));
    let (Device::Vnic(found_plan), Device::Vnic(plan)) = (&mut found.device, &mut expected.device) else {
        panic!("{found:?} is no VNIC");
    };
    // These follow from the machine that wrote it.
    (plan.mac, plan.host_mac) = (found_plan.mac, found_plan.host_mac);
    assert_eq!(found, expected);
    assert_eq!(grants.next(), None);
}

#[test]
fn another_format_is_refused_by_its_number() {
    let scratch = Scratch::new("later");
    let path = scratch.0.join("state.redb");
    std::fs::write(&path, golden()).unwrap();
    let database = Database::create(&path).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(META).unwrap().insert("format", 9).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let error = State::open(&scratch.0).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("state.redb") && error.contains("format is 9"), "{error}");
}
