use super::*;

fn resolved(uid: u32, variables: &[(&str, &str)]) -> String {
    let variable =
        |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value));
    resolve(uid, &variable).display().to_string()
}

#[test]
fn root_has_the_system_socket_and_a_user_one_of_their_own() {
    let both = [("XDG_RUNTIME_DIR", "/run/user/7"), ("HOME", "/home/seven")];
    assert_eq!(resolved(0, &both), SYSTEM_SOCKET);
    assert_eq!(resolved(7, &both), "/run/user/7/sietch/sietch.sock");
    assert_eq!(resolved(7, &both[1..]), "/home/seven/.local/share/sietch/run/sietch.sock");
    assert_eq!(resolved(7, &[]), "/run/user/7/.local/share/sietch/run/sietch.sock");
    // A variable that is set but empty is as good as none.
    assert_eq!(resolved(0, &[(SOCKET_VARIABLE, "")]), SYSTEM_SOCKET);
}

#[test]
fn the_variable_wins() {
    for uid in [0, 7] {
        assert_eq!(resolved(uid, &[(SOCKET_VARIABLE, "/elsewhere.sock")]), "/elsewhere.sock");
    }
}

#[test]
fn a_client_prefers_its_own_daemon_to_roots() {
    let (own, system) = (PathBuf::from("/own"), Path::new("/system"));
    assert_eq!(choose(own.clone(), system, |_| true), own);
    assert_eq!(choose(own.clone(), system, |path| path == system), system);
    assert_eq!(choose(own.clone(), system, |_| false), own);
}
