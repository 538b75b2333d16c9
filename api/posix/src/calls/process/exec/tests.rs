#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

use std::ffi::CString;

use super::*;

fn kept() -> Kept {
    let mut kept = Kept { carried: [const { Text::new() }; CARRIED.len()], library: Text::new() };
    kept.carried[0].set(SOCKET_VARIABLE, b"/run/s.sock");
    kept.carried[1].set(APPLICATION_VARIABLE, b"0123");
    kept.library.set(PRELOAD, b"/lib/ours.so");
    kept
}

/// A list of texts as C has it.
struct Given {
    texts: Vec<CString>,
    list: Vec<*const c_char>,
}

impl Given {
    fn new(texts: &[&str]) -> Self {
        let texts: Vec<_> = texts.iter().map(|text| CString::new(*text).unwrap()).collect();
        let list = texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect();
        Self { texts, list }
    }

    fn texts(&self) -> Texts<'_> {
        assert_eq!(self.texts.len() + 1, self.list.len());
        // SAFETY: texts with a null pointer behind them, all of which this borrows.
        unsafe { Texts::at(self.list.as_ptr()) }
    }
}

/// The texts of an environment. What it points into has to outlive it, which the compiler checks.
fn texts(environment: &Environment<'_>) -> Vec<String> {
    // SAFETY: a list with a null pointer behind it, which the environment keeps.
    let texts = unsafe { Texts::at(environment.list()) };
    texts.iter().map(|text| text.to_str().unwrap().to_owned()).collect()
}

fn after(given: &[&str]) -> Vec<String> {
    let (given, kept) = (Given::new(given), kept());
    texts(&Environment::with(&kept, given.texts()))
}

#[test]
fn a_new_environment_gets_the_variables_of_this_process() {
    let expected =
        ["A=1", "SIETCH_SOCKETS=/run/s.sock", "SIETCH_APPLICATION=0123", "LD_PRELOAD=/lib/ours.so"];
    assert_eq!(after(&["A=1"]), expected);
    assert_eq!(after(&[]), expected[1..]);
}

#[test]
fn other_libraries_follow_ours() {
    let got = after(&["LD_PRELOAD=/lib/a.so /lib/b.so", "A=1"]);
    assert_eq!(got.last().unwrap(), "LD_PRELOAD=/lib/ours.so:/lib/a.so /lib/b.so");
    assert_eq!(got.iter().filter(|text| text.starts_with("LD_PRELOAD")).count(), 1);
    assert_eq!(after(&["LD_PRELOAD=/lib/ours.so"]).last().unwrap(), "LD_PRELOAD=/lib/ours.so");
}

#[test]
fn an_environment_that_names_another_service_is_left_alone() {
    for own in [&["A=1", "SIETCH_SOCKETS=/other"][..], &["SIETCH_SOCKETS=", "LD_PRELOAD=/lib/a.so"]] {
        assert_eq!(after(own), own);
    }
    assert_eq!(after(&["SIETCH_SOCKETS_NOT=1"]).len(), 4);
}

#[test]
fn a_launcher_that_sets_its_own_library_keeps_ours() {
    let own = "SIETCH_SOCKETS=/run/s.sock";
    let got = after(&[own, "LD_PRELOAD=/lib/jemalloc.so", "A=1"]);
    assert_eq!(got, [own, "A=1", "LD_PRELOAD=/lib/ours.so:/lib/jemalloc.so"]);
    for same in [&[own, "A=1"][..], &[own, "LD_PRELOAD=/lib/a.so:/lib/ours.so"]] {
        assert_eq!(after(same), same, "without a library of its own, or with ours, it stays");
    }
}

#[test]
fn no_environment_at_all_is_an_empty_one() {
    let kept = kept();
    // SAFETY: Linux takes a null pointer for an empty list.
    let none = unsafe { Texts::at(ptr::null()) };
    assert_eq!(texts(&Environment::with(&kept, none)).len(), 3);
}

#[test]
fn a_path_too_long_is_not_cut() {
    let mut text = Text::new();
    text.set(SOCKET_VARIABLE, &[b'a'; TEXT]);
    assert_eq!(text.get(), None);
}

fn left(given: &[&str]) -> Vec<String> {
    let (given, kept) = (Given::new(given), kept());
    texts(&Environment::without(&kept, given.texts()))
}

#[test]
fn a_program_that_cannot_load_the_library_gets_the_other_entries() {
    assert_eq!(left(&["A=1", "LD_PRELOAD=/lib/ours.so", "B=2"]), ["A=1", "B=2"]);
    assert_eq!(
        left(&["LD_PRELOAD=/lib/a.so:/lib/ours.so /lib/b.so", "SIETCH_SOCKETS=/run/s.sock"]),
        ["LD_PRELOAD=/lib/a.so:/lib/b.so", "SIETCH_SOCKETS=/run/s.sock"]
    );
    assert_eq!(left(&["LD_PRELOAD=/lib/ours.so", "LD_PRELOAD=:/lib/ours.so:"]), Vec::<String>::new());
    for same in [&["LD_PRELOAD=/lib/a.so", "A=1"][..], &[], &["LD_PRELOAD=/lib/ours.so.1"]] {
        assert_eq!(left(same), same);
    }
}
