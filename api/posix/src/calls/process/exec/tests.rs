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

fn after(given: &[&str]) -> Vec<String> {
    let texts: Vec<_> = given.iter().map(|text| CString::new(*text).unwrap()).collect();
    let mut list: Vec<_> = texts.iter().map(|text| text.as_ptr()).collect();
    list.push(ptr::null());
    let kept = kept();
    // SAFETY: a list of texts with a null behind it; these and what is kept outlive the
    // environment, which points into them.
    unsafe {
        let environment = Environment::with(&kept, list.as_ptr());
        super::texts(environment.list()).map(|text| String::from_utf8(text.to_vec()).unwrap()).collect()
    }
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
fn an_environment_that_names_the_service_is_left_alone() {
    for own in [&["A=1", "SIETCH_SOCKETS=/other"][..], &["SIETCH_SOCKETS=", "LD_PRELOAD=/lib/a.so"]] {
        assert_eq!(after(own), own);
    }
    assert_eq!(after(&["SIETCH_SOCKETS_NOT=1"]).len(), 4);
}

#[test]
fn no_environment_at_all_is_an_empty_one() {
    let kept = kept();
    // SAFETY: Linux takes a null pointer for an empty list.
    let environment = unsafe { Environment::with(&kept, ptr::null()) };
    // SAFETY: what was just made.
    assert_eq!(unsafe { super::texts(environment.list()) }.count(), 3);
}

#[test]
fn a_path_too_long_is_not_cut() {
    let mut text = Text::new();
    text.set(SOCKET_VARIABLE, &[b'a'; TEXT]);
    assert_eq!(text.get(), None);
}

fn left(given: &[&str]) -> Vec<String> {
    let texts: Vec<_> = given.iter().map(|text| CString::new(*text).unwrap()).collect();
    let mut list: Vec<_> = texts.iter().map(|text| text.as_ptr()).collect();
    list.push(ptr::null());
    let kept = kept();
    // SAFETY: a list of texts with a null behind it, both of which outlive it.
    unsafe {
        let environment = Environment::without(&kept, list.as_ptr());
        super::texts(environment.list()).map(|text| String::from_utf8(text.to_vec()).unwrap()).collect()
    }
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
