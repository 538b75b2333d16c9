//! Loading a changed `sietch.toml`.
//!
//! 1. The whole new file is checked before anything of it takes effect. On an error the previous
//!    configuration stays in force.
//! 2. What the next start would refuse is refused here, by the same checks: an area of another
//!    user or size ([`Volume::check`](crate::volume::Volume::check)), and what the store of `[kv]`
//!    needs ([`Configuration::check_store`]). Otherwise the next crash of a part would be its end.
//! 3. What cannot change while it is used is refused: a volume of which an area is in use, the user
//!    of a service core that runs, the daemon's own socket and data.
//! 4. A start refuses no area: the daemon serves the others, Status shows a warning for each that
//!    does not fit, and acquiring that one is refused with the same words.
//! 5. What only `sietch up` reads takes effect when that starts again. Status names what has
//!    changed of it since the daemon started.

use sietch_protocol::{ErrorKind, ErrorReply, Notice};

use super::controller::{Control, refuse};
use crate::configuration::{Configuration, Kv};
use crate::volume::{AreaPath, Volumes, same};

/// The end of a refusal.
const STAYS: &str = "the previous configuration stays in effect";

impl Control {
    pub(super) fn reload(&mut self) -> Result<(), ErrorReply> {
        let next = Configuration::load(&self.configuration.path).map_err(|error| {
            let fix = format!("correct it and reload; {STAYS}");
            refuse(ErrorKind::Invalid, "configuration", error.to_string(), fix)
        })?;
        self.check_in_use(&next)?;
        self.check_store(&next)?;
        let volumes = Volumes::open(&self.data, &next.volumes, Some(&self.volumes))
            .map_err(|error| refuse(ErrorKind::Failed, "volumes", error.to_string(), "fix it"))?;
        let stays = |refusal: ErrorReply| ErrorReply { fix: format!("{}; {STAYS}", refusal.fix), ..refusal };
        unfit(&next, &volumes, Some(&self.configuration)).next().map_or(Ok(()), Err).map_err(stays)?;
        self.volumes = volumes;
        self.configuration = next;
        self.forget_volumes();
        let readers = self.clients.iter().filter(|(_, client)| client.attends.is_some());
        for reader in readers.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.send_notice(reader, Notice::Reloaded, Vec::new());
        }
        Ok(())
    }

    /// Areas that cannot be acquired, and why.
    pub(super) fn unfit_areas(&self) -> impl Iterator<Item = String> {
        unfit(&self.configuration, &self.volumes, None).map(|refusal| refusal.to_string())
    }

    /// What has changed and takes no effect before `sietch up` starts again.
    pub(super) fn without_effect(&self) -> Option<String> {
        let (then, now) = (&self.first, &self.configuration);
        let keys = then.kv.changed(&now.kv);
        let tables = [
            ("[[fs]]", then.file_systems == now.file_systems),
            ("[service]", then.service_uid == now.service_uid),
            ("[sockets]", then.socket_rules == now.socket_rules),
        ];
        let mut changed: Vec<String> = Vec::new();
        changed.extend((!keys.is_empty()).then(|| format!("[kv] {}", keys.join(", "))));
        changed.extend(tables.iter().filter(|(_, is_same)| !is_same).map(|(table, _)| (*table).to_owned()));
        (self.starts_store && !changed.is_empty()).then(|| {
            format!(
                "changed in {}: {}; this takes effect when `sietch up` starts again (`sietch down` first)",
                now.path.display(),
                changed.join("; ")
            )
        })
    }

    /// Logs them, at the start.
    pub(crate) fn log_unfit_areas(&self) {
        for why in self.unfit_areas() {
            tracing::warn!("{why}");
        }
    }

    /// What is in use stays as it is: a volume while a process holds one of its areas, or a change
    /// of one is under way; the user of the service core; what the daemon itself stands on.
    fn check_in_use(&self, next: &Configuration) -> Result<(), ErrorReply> {
        let now = &self.configuration;
        let busy = |what: &str, cause: String, fix: &str| {
            Err(refuse(ErrorKind::Busy, what, cause, format!("{fix}; {STAYS}")))
        };
        if next.daemon != now.daemon {
            let cause = "socket and data cannot change while the daemon runs".to_owned();
            return busy("[daemon]", cause, "set them back, or stop the daemon before you change them");
        }
        let core = self.ports.service.and_then(|connection| self.clients.get(&connection));
        if next.service_uid != now.service_uid
            && let Some(process) = core.map(|client| &client.process)
            && process.uid != next.service_uid
        {
            let cause = format!("the service core, pid {}, runs as uid {}", process.pid, process.uid);
            return busy("[service]", cause, "set its uid back, or change it while nothing runs");
        }
        let held = self.grants.values().filter(|record| !record.device.is_vnic()).map(|record| &record.name);
        for label in held.chain(self.preparing.keys()) {
            let volume = AreaPath::from_label(label).volume;
            let now = self.volumes.get(&volume).map(|volume| &volume.definition);
            let then = next.volumes.iter().find(|other| other.name == volume);
            if !now.zip(then).is_some_and(|(now, then)| same(now, then)) {
                let cause = format!("VSA {label} is in use, and the new file changes or removes its volume");
                return busy(&format!("volume {volume}"), cause, "end its holder first");
            }
        }
        Ok(())
    }

    /// The store that `sietch up` starts must be able to start again. One that cannot start as it
    /// is (its command line may name other areas) is no reason to refuse.
    fn check_store(&self, next: &Configuration) -> Result<(), ErrorReply> {
        let now = &self.configuration;
        if !self.starts_store || now.check_store(&now.kv).is_err() {
            return Ok(());
        }
        let refused = |cause: String| {
            refuse(ErrorKind::Invalid, "configuration", cause, format!("correct it and reload; {STAYS}"))
        };
        next.check_store(&next.kv).map_err(|error| refused(error.to_string()))?;
        let address = |kv: &Kv| kv.listen.first().map(|address| (*address, kv.port));
        match address(&next.kv) {
            Some(place) if Some(place) != address(&now.kv) => match std::net::TcpListener::bind(place) {
                Ok(_) => Ok(()),
                Err(error) => {
                    Err(refused(format!("[kv]: nothing can listen on {} port {}: {error}", place.0, place.1)))
                }
            },
            _ => Ok(()),
        }
    }
}

/// Whether both describe the volume alike.
fn is_same_volume(previous: Option<&Configuration>, next: &Configuration, name: &str) -> bool {
    let volume = |file: &'_ Configuration| file.volumes.iter().position(|volume| volume.name == name);
    previous.is_some_and(|previous| match (volume(previous), volume(next)) {
        (Some(before), Some(after)) => previous.volumes[before] == next.volumes[after],
        (before, after) => before.is_none() && after.is_none(),
    })
}

/// The areas of `configuration` that cannot be acquired as it describes them. A size that differs
/// from that in `previous` was changed on purpose.
fn unfit(
    configuration: &Configuration,
    volumes: &Volumes,
    previous: Option<&Configuration>,
) -> impl Iterator<Item = ErrorReply> {
    configuration.vsas.iter().filter_map(move |vsa| {
        let before = previous.and_then(|file| file.vsas.iter().find(|before| before.name == vsa.name));
        // What this reload leaves as it was is not refused: the holder of one area could so prevent
        // every reload. `status` warns of it.
        if before == Some(vsa) && is_same_volume(previous, configuration, &vsa.volume) {
            return None;
        }
        let resized = before.is_some_and(|before| before.size != vsa.size);
        volumes.get(&vsa.volume)?.check(vsa, resized).err()
    })
}
