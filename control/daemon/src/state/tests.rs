use super::*;

/// A directory that goes with the test.
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
fn what_was_kept_is_there_after_a_restart_and_numbers_never_repeat() {
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
fn a_file_that_was_scribbled_on_is_refused_by_name_with_a_mend() {
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
