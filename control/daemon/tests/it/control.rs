//! Grants, generations, adoption, revocation and refusals, with devices that need no privilege.

use std::os::fd::AsFd;
use std::path::PathBuf;

use crate::scene::{self, PATIENCE, Scene};
use sietch_protocol::metrics::{Kind, Page};
use sietch_protocol::{CallError, Connection, ErrorKind, HeldGrant, Notice, Status, Target, VnicDescriptors};

fn kind<T: std::fmt::Debug>(result: Result<T, CallError>) -> (ErrorKind, String) {
    match result {
        Err(CallError::Refused(error)) => (error.kind, error.to_string()),
        other => panic!("a refusal was expected, not {other:?}"),
    }
}

#[test]
fn a_vnic_has_one_holder_and_each_grant_a_newer_generation() {
    let scene = Scene::own("holder");
    let daemon = scene.start();
    let (mut first, mut second) = (scene.connect(), scene.connect());
    let (grant, VnicDescriptors::AfXdp { socket, umem }) = first.acquire_vnic("kv").unwrap() else {
        panic!("a veth VNIC was requested")
    };
    assert_eq!(grant.address.to_string(), "10.83.0.2");
    assert!(grant.gateway_mac.is_some() && grant.tcp_ports[0].contains(6379));
    for descriptor in [&socket, &umem] {
        rustix::fs::fstat(descriptor).unwrap();
    }
    let (sort, text) = kind(second.acquire_vnic("kv"));
    assert_eq!(sort, ErrorKind::Busy);
    assert!(
        text.contains(&format!("pid {}", std::process::id())) && text.contains("sietch revoke kv"),
        "{text}"
    );
    assert_eq!(kind(second.release(grant.grant + 1)).0, ErrorKind::Unknown);
    first.release(grant.grant).unwrap();
    assert!(!scene.device().exists());
    let (again, ..) = second.acquire_vnic("kv").unwrap();
    assert!(again.generation > grant.generation && again.grant > grant.grant);
    second.shutdown().unwrap();
    daemon.ended().unwrap();
    assert!(!scene.device().exists() && !scene.socket().exists());
}

/// The file beside a device that makes it take long while it is there. It goes also when a test
/// fails: the daemon could not end.
struct Slow(PathBuf);

impl Slow {
    fn begin(&self) {
        std::fs::write(&self.0, "").unwrap();
    }

    fn end(&self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_device_that_takes_long_delays_no_other_client() {
    let scene = Scene::own("slow");
    let daemon = scene.start();
    let slow = Slow(scene.device().with_extension("slow"));
    slow.begin();
    let (mut first, mut second, mut third) = (scene.connect(), scene.connect(), scene.connect());
    let acquiring = std::thread::spawn(move || (first.acquire_vnic("kv").unwrap(), first));
    // These are answered meanwhile.
    scene.wait_for("the grant", |status| status.vnics[0].holder.is_some());
    assert_eq!(kind(second.acquire_vnic("kv")).0, ErrorKind::Busy);
    second.acquire_vsa("kv").unwrap();
    assert!(!acquiring.is_finished());
    slow.end();
    let ((grant, _), mut first) = acquiring.join().unwrap();

    // A request for a name that is being released waits, and others do not.
    slow.begin();
    let releasing = std::thread::spawn(move || first.release(grant.grant).unwrap());
    let acquiring = std::thread::spawn(move || {
        loop {
            match third.acquire_vnic("kv") {
                Err(CallError::Refused(error)) if error.kind == ErrorKind::Busy => {}
                acquired => return (acquired.unwrap().0, third),
            }
        }
    });
    scene.status();
    assert!(!releasing.is_finished() && !acquiring.is_finished());
    slow.end();
    releasing.join().unwrap();
    let (again, third) = acquiring.join().unwrap();
    assert!(again.generation > grant.generation);
    assert!(scene.device().exists());

    // What was begun for a process that ends is undone.
    drop(third);
    let mut application = scene.application(None);
    scene.connect().revoke(Target::Name("kv".to_owned())).unwrap();
    scene.connect().restore("kv").unwrap();
    slow.begin();
    application.send_command("vnic");
    let pid = application.pid();
    let held = |status: &Status| status.vnics[0].holder.as_ref().map(|holder| holder.pid);
    scene.wait_for("the second grant", |status| held(status) == Some(pid));
    drop(application);
    slow.end();
    scene.wait_for("its end", |status| held(status).is_none());
    assert!(!scene.device().exists());
    second.shutdown().unwrap();
    daemon.ended().unwrap();
}

#[test]
fn a_refusal_for_access_or_an_unknown_name_says_how_to_fix_it() {
    let scene = Scene::own("denied");
    let _daemon = scene.start();
    let mut connection = scene.connect();
    let (sort, text) = kind(connection.acquire_vnic("other"));
    assert_eq!(sort, ErrorKind::Denied);
    assert!(text.contains("uid 4242") && text.contains("sietch.toml"), "{text}");
    let (sort, text) = kind(connection.acquire_vsa("nothing"));
    assert_eq!(sort, ErrorKind::Unknown);
    assert!(text.contains("sietch.toml"), "{text}");
    let (sort, text) = kind(connection.acquire_vsa("nothing\x1b[2J"));
    assert_eq!(sort, ErrorKind::Invalid);
    assert!(!text.contains('\x1b'), "{text}");
}

#[test]
fn devices_of_a_killed_process_are_revoked() {
    let scene = Scene::own("killed");
    let _daemon = scene.start();
    let mut application = scene.application(None);
    application.command("vnic", "GRANT");
    application.command("vsa", "GRANT");
    let status = scene.status();
    assert_eq!(status.vnics[0].holder.as_ref().unwrap().pid, application.pid());
    assert!(status.vsas[0].holder.is_some() && scene.device().exists());
    application.kill();
    scene.wait_for("both grants to end", |status| {
        status.vnics[0].holder.is_none() && status.vsas[0].holder.is_none()
    });
    assert!(!scene.device().exists());
}

#[test]
fn a_killed_daemon_disturbs_no_holder_and_its_successor_adopts_revokes_and_cleans_up() {
    let scene = Scene::own("successor");
    let daemon = scene.start_process();
    let mut living = scene.application(None);
    let held = living.command("vnic", "GRANT");
    let mut dying = scene.application(None);
    dying.command("vsa", "GRANT");
    std::fs::write(scene.root.join("devices/sv-orphan"), "0").unwrap();
    daemon.kill();
    assert!(scene.device().exists(), "a killed daemon must leave what is in use");
    dying.kill();
    let _daemon = scene.start_process();
    let status = scene.status();
    let holder = status.vnics[0].holder.as_ref().expect("the VNIC is adopted");
    assert_eq!(format!("{} {}", holder.grant, holder.generation), held);
    assert!(!holder.connected && status.vsas[0].holder.is_none());
    assert!(!scene.root.join("devices/sv-orphan").exists());
    assert!(scene.device().exists());
    let mut administrator = scene.connect();
    let lines = administrator.revoke(Target::Grant(holder.grant)).unwrap();
    assert!(lines[0].contains(&format!("pid {}", living.pid())), "{lines:?}");
    assert!(!scene.device().exists(), "revoking needs no connected application");
    assert_eq!(living.command("reconnect", "ADOPTED"), "false");
    let refused = living.command("vnic", "GRANT");
    assert!(refused.contains("was revoked"), "{refused}");
}

#[test]
fn an_application_that_reconnects_keeps_its_grants_and_nothing_else() {
    let scene = Scene::own("adopt");
    let daemon = scene.start();
    let mut application = scene.application(None);
    application.command("vnic", "GRANT");
    let generation = scene.connect().welcome().generation;
    daemon.crash();
    let _daemon = scene.start();
    assert!(scene.connect().welcome().generation > generation);
    assert_eq!(application.command("reconnect", "ADOPTED"), "true");
    let holder = scene.status().vnics[0].holder.clone().unwrap();
    assert!(holder.connected);
    // This process claims the other one's grant, and one with a stale generation.
    let (grant, generation) = (holder.grant, holder.generation);
    let claims = vec![HeldGrant { grant, generation }, HeldGrant { grant: 999, generation }];
    for answer in scene.connect().adopt(claims).unwrap() {
        assert!(!answer.held && !answer.reason.is_empty());
    }
}

#[test]
fn a_revoked_name_stays_refused_through_a_restart_until_it_is_restored() {
    let scene = Scene::own("revoke");
    let daemon = scene.start();
    let (mut holder, mut administrator) = (scene.connect(), scene.connect());
    let (grant, ..) = holder.acquire_vnic("kv").unwrap();
    let lines = administrator.revoke(Target::Name("kv".into())).unwrap();
    assert_eq!(lines.len(), 2, "{lines:?}");
    let (notice, _) = loop {
        if let Some(notice) = holder.take_notice().unwrap() {
            break notice;
        }
    };
    let Notice::Revoked { grant: revoked, generation, .. } = notice else { panic!("{notice:?}") };
    assert_eq!((revoked, generation), (grant.grant, grant.generation));
    assert_eq!(kind(holder.acquire_vnic("kv")).0, ErrorKind::Revoked);
    daemon.crash();
    let _daemon = scene.start();
    let mut connection = scene.connect();
    assert!(scene.status().vnics[0].revoked && scene.status().vsas[0].revoked);
    assert_eq!(kind(connection.acquire_vsa("kv")).0, ErrorKind::Revoked);
    connection.restore("kv").unwrap();
    assert_eq!(kind(connection.restore("kv")).0, ErrorKind::Unknown);
    connection.acquire_vnic("kv").unwrap();
}

#[test]
fn an_area_keeps_its_data_for_its_owner_and_cannot_grow() {
    let scene = Scene::own("area");
    let _daemon = scene.start();
    let mut connection = scene.connect();
    let (grant, file) = connection.acquire_vsa("kv").unwrap();
    assert_eq!(grant.size, 1 << 20);
    rustix::io::pwrite(&file, &[7; 4096], 4096).unwrap();
    rustix::fs::ftruncate(&file, 8 << 20).unwrap();
    let status = connection.status().unwrap();
    assert!(status.warnings.iter().any(|line| line.contains("cut back")), "{:?}", status.warnings);
    assert!(status.vsas[0].holder.is_none(), "it holds what takes room of others");
    scene.wait_for("the file to be cut back", |_| rustix::fs::fstat(&file).unwrap().st_size == 1 << 20);
    drop(file);
    let (_, file) = scene::until_done(|| connection.acquire_vsa("kv"));
    let mut bytes = [0; 4096];
    rustix::io::pread(&file, &mut bytes, 4096).unwrap();
    assert_eq!(bytes, [7; 4096], "a restart of the same owner must find its data");
}

#[test]
fn an_area_is_granted_to_no_other_user() {
    let scene = Scene::new("owner", 4242);
    std::fs::create_dir_all(scene.data().join("areas")).unwrap();
    std::fs::write(scene.data().join("areas/kv.vsa"), vec![0; 1 << 20]).unwrap();
    let own = rustix::process::geteuid().as_raw();
    scene.configure(&format!("[[vsa]]\nname = \"kv\"\nuid = {own}\nsize = \"1MiB\"\n"));
    let _daemon = scene.start();
    let mut connection = scene.connect();
    let (sort, text) = kind(connection.acquire_vsa("kv"));
    assert!(sort == ErrorKind::Denied && text.contains("kv.owner"), "{text}");
    std::fs::write(scene.data().join("areas/kv.owner"), "4242\n").unwrap();
    let (sort, text) = kind(connection.acquire_vsa("kv"));
    assert!(sort == ErrorKind::Denied && text.contains("uid 4242"), "{text}");
    assert!(connection.status().unwrap().vsas[0].holder.is_none(), "a refusal leaves no grant");
    std::fs::write(scene.data().join("areas/kv.owner"), format!("{own}\n")).unwrap();
    connection.acquire_vsa("kv").unwrap();
}

#[test]
fn the_next_holder_waits_for_the_last_descriptor_of_the_previous_one() {
    let scene = Scene::own("descriptor");
    let _daemon = scene.start();
    let mut connection = scene.connect();
    let (grant, file) = connection.acquire_vsa("kv").unwrap();
    connection.release(grant.grant).unwrap();
    assert_eq!(kind(connection.acquire_vsa("kv")).0, ErrorKind::Busy);
    drop(file);
    connection.acquire_vsa("kv").unwrap();
}

#[test]
fn a_second_daemon_names_the_first() {
    let scene = Scene::own("second");
    let _daemon = scene.start();
    let second = scene.start();
    assert!(!second.started);
    let error = second.ended().unwrap_err().to_string();
    assert!(error.contains("already running") && error.contains(&std::process::id().to_string()), "{error}");
    let socket = scene.socket();
    assert!(error.contains(&format!("--socket {} down", socket.display())), "{error}");
    assert_eq!(sietch_daemon::last_socket(&scene.data()), Some(socket));
    scene.status();
}

#[test]
fn a_broken_state_or_configuration_is_refused_by_name() {
    let scene = Scene::own("broken");
    std::fs::create_dir_all(scene.data()).unwrap();
    std::fs::write(scene.data().join("state.redb"), vec![0x5a; 8192]).unwrap();
    let error = scene.start().ended().unwrap_err().to_string();
    assert!(error.contains("state.redb") && error.contains("mv "), "{error}");
    scene.configure("[[vnic]]\nname = 3\n");
    let error = scene.start().ended().unwrap_err().to_string();
    assert!(error.contains("sietch.toml") && error.contains("line 2"), "{error}");
    std::fs::remove_file(scene.configuration()).unwrap();
    std::fs::create_dir(scene.configuration()).unwrap();
    let error = scene.start().ended().unwrap_err().to_string();
    assert!(error.contains("sietch.toml") && error.contains("--config"), "{error}");
}

#[test]
fn a_missing_configuration_is_written_and_serves() {
    let scene = Scene::own("first");
    std::fs::remove_file(scene.configuration()).unwrap();
    let _daemon = scene.start();
    assert_eq!(scene.status().vnics[0].name, "kv");
    assert!(std::fs::read_to_string(scene.configuration()).unwrap().contains("[[vsa]]"));
}

#[test]
fn reloading_takes_a_good_configuration_and_refuses_a_bad_one() {
    let scene = Scene::own("reload");
    let _daemon = scene.start();
    let mut connection = scene.connect();
    let (grant, ..) = connection.acquire_vnic("kv").unwrap();
    scene.configure("[[vnic\n");
    let (_, text) = kind(connection.reload());
    assert!(text.contains("line 1") && text.contains("previous configuration"), "{text}");
    assert_eq!(connection.status().unwrap().vnics.len(), 2);
    scene.configure("");
    connection.reload().unwrap();
    assert!(connection.status().unwrap().vnics.is_empty());
    connection.release(grant.grant).unwrap();
    assert_eq!(kind(connection.acquire_vnic("kv")).0, ErrorKind::Unknown);
}

#[test]
fn counters_of_applications_are_shown_and_a_bad_page_is_refused() {
    let scene = Scene::own("stat");
    let _daemon = scene.start();
    let mut connection = scene.connect();
    let mut page = Page::create(&[("requests", Kind::Counter)]).unwrap();
    connection.publish_metrics("kv", page.as_fd()).unwrap();
    page.set(0, 17);
    page.publish().unwrap();
    let groups = scene.connect().stat().unwrap();
    let own = groups.iter().find(|group| group.source == "kv").unwrap();
    assert_eq!((own.pid, own.metrics[0].value), (Some(std::process::id()), 17));
    // A connection may show a page for each of its layers, within reason.
    for label in ["log", "tcp", "nic", "a", "b", "c", "d"] {
        connection.publish_metrics(label, page.as_fd()).unwrap();
    }
    connection.publish_metrics("log", page.as_fd()).unwrap();
    let groups = scene.connect().stat().unwrap();
    assert!(
        ["kv", "log", "tcp", "nic"].iter().all(|label| groups.iter().any(|group| group.source == *label))
    );
    assert_eq!(kind(connection.publish_metrics("e", page.as_fd())).0, ErrorKind::Limit);
    let daemon = groups.iter().find(|group| group.source == "daemon").unwrap();
    assert!(daemon.metrics.iter().any(|metric| metric.name == "requests" && metric.value > 0));
    let (pipe, _writer) = rustix::pipe::pipe().unwrap();
    let (sort, text) = kind(connection.publish_metrics("kv", pipe.as_fd()));
    assert!(sort == ErrorKind::Invalid && text.contains("sealed"), "{text}");
}

#[test]
fn shutting_down_notifies_applications_and_leaves_nothing() {
    let scene = Scene::own("shutdown");
    let daemon = scene.start();
    let mut application = scene.connect();
    application.acquire_vnic("kv").unwrap();
    scene.connect().shutdown().unwrap();
    daemon.ended().unwrap();
    let mut notified = false;
    loop {
        match application.take_notice() {
            Ok(Some((Notice::ShuttingDown { .. }, _))) => notified = true,
            Ok(_) => {}
            Err(CallError::Closed) => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(notified && !scene.device().exists() && !scene.socket().exists());
    assert!(matches!(Connection::connect(&scene.socket(), "test", PATIENCE), Err(CallError::Connect { .. })));
    let _daemon = scene.start();
    assert!(scene.status().vnics[0].holder.is_none());
}
