//! `sietch run -- PROGRAM`: runs an unmodified program with Sietch's TCP sockets.
//!
//! 1. The file is found as a shell would find it, and examined ([`program`]). A program into which
//!    no library can be loaded is named and not started, unless `--anyway` is given: then it runs
//!    on the kernel's sockets.
//! 2. The library and the service's socket are found, and the service is greeted ([`environment`]).
//!    If its version differs, a warning is printed, and the program runs on the kernel's sockets,
//!    unless it needs what they lack (`--vnic`, `--publish`).
//! 3. The mounts whose files the program shall read and write itself are checked ([`files`]). With
//!    them, no service is needed.
//! 4. Ports of the host that are to lead to the program are tried ([`publish`]).
//! 5. The environment is set, and this process executes the program: process id, terminal, signals
//!    and exit status are the program's own.
//!
//! Exit statuses before that: [`error`].

mod elf;
mod environment;
pub(crate) mod error;
mod files;
mod program;
mod publish;
mod unsupported;

#[cfg(test)]
pub(crate) use unsupported::Unsupported;

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use sietch_protocol::socket_service;

use crate::arguments::run::RunArguments;
use crate::paths;
use environment::Service;
use error::RunError;

/// Executes the program. Returns only if that fails.
pub(crate) fn run(arguments: &RunArguments, daemon: Option<&Path>) -> RunError {
    match prepare(arguments, daemon) {
        Ok((file, mut command)) => RunError::Start { path: file, source: command.exec() },
        Err(cause) => cause,
    }
}

fn prepare(arguments: &RunArguments, daemon: Option<&Path>) -> Result<(PathBuf, Command), RunError> {
    let name = arguments.command.first().map_or_else(OsString::new, Clone::clone);
    let path = std::env::var_os("PATH");
    let file = program::find(&name, path.as_deref())?;
    let mut with_library = true;
    if let Some(reason) = program::check(&file, path.as_deref())? {
        with_library = !reason.rejects_the_library();
        go_on(arguments.anyway, RunError::Unsupported { path: file.clone(), reason })?;
    }
    let mut command = Command::new(&file);
    command.arg0(&name).args(arguments.command.iter().skip(1));
    let sockets = arguments.sockets.clone().unwrap_or_else(|| paths::sockets(daemon));
    let sockets = std::path::absolute(&sockets).unwrap_or(sockets);
    let own = std::env::current_exe().unwrap_or_default();
    let library = environment::library(std::env::var_os(environment::PRELOAD_VARIABLE).as_deref(), &own);
    let service = Service {
        path: &sockets,
        application: environment::application()?,
        library: environment::build(library.as_ref().ok()),
    };
    let mounts = files::mounts(&arguments.fs)?;
    let mut with_sockets = true;
    if let Err(cause) = service.greet() {
        with_sockets = false;
        with_library &= mounts.is_some();
        // During an upgrade the versions differ for a while: servers must start all the same, and
        // the warning says which sockets they have.
        let on_the_host = arguments.vnic.is_none() && arguments.publish.is_empty();
        let passing = matches!(cause, RunError::OtherService { .. } | RunError::NoNumber { .. });
        let is_wanted = mounts.is_none() || !matches!(cause, RunError::NoService { .. });
        if is_wanted || !on_the_host {
            go_on(arguments.anyway || on_the_host && passing, cause)?;
        }
    }
    if with_library
        && with_sockets
        && let Some(program) = program::imports_liburing(&file, path.as_deref())
    {
        // The program may use liburing for files alone. If standard error is closed, it runs all
        // the same.
        let _ = writeln!(
            std::io::stderr(),
            "sietch run: {} uses liburing, whose system calls go past Sietch's library: connections to programs under Sietch that it uses io_uring \
             for are reset; let it use another way for sockets, or start it without `sietch run`",
            program.display()
        );
    }
    if with_library {
        let inherited = std::env::var_os("LD_PRELOAD");
        command.env("LD_PRELOAD", environment::preload(&library?, inherited.as_deref()));
        match mounts {
            Some(list) => command.env(socket_service::FILES_VARIABLE, list),
            None => command.env_remove(socket_service::FILES_VARIABLE),
        };
        if with_sockets {
            set_environment(&mut command, arguments, &service)?;
        } else {
            command.env_remove(socket_service::SOCKET_VARIABLE);
        }
    }
    Ok((file, command))
}

/// Whether a finding stops the program, or is printed as a warning.
fn go_on(anyway: bool, finding: RunError) -> Result<(), RunError> {
    if !anyway {
        return Err(finding);
    }
    // If standard error is closed, the program runs all the same.
    let _ = writeln!(std::io::stderr(), "sietch run: {finding}");
    Ok(())
}

/// Sets the environment variables that the library reads for its sockets.
fn set_environment(
    command: &mut Command,
    arguments: &RunArguments,
    service: &Service<'_>,
) -> Result<(), RunError> {
    command
        .env(socket_service::SOCKET_VARIABLE, service.path)
        .env(socket_service::APPLICATION_VARIABLE, environment::written(&service.application));
    match &arguments.vnic {
        Some(vnic) => command.env(socket_service::VNIC_VARIABLE, vnic),
        None => command.env_remove(socket_service::VNIC_VARIABLE),
    };
    if arguments.always {
        command.env_remove(socket_service::SHORT_LIVED_VARIABLE);
    } else {
        command.env(socket_service::SHORT_LIVED_VARIABLE, "1");
    }
    match publish::variable(&arguments.publish, arguments.vnic.is_some(), service)? {
        Some(list) => command.env(socket_service::PUBLISH_VARIABLE, list),
        None => command.env_remove(socket_service::PUBLISH_VARIABLE),
    };
    Ok(())
}
