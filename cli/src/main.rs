//! The `sietch` command.
//!
//! 1. The command line is parsed ([`arguments`]) and passed to the module of its command.
//! 2. A failure is printed on standard error with its subject, cause and fix. The exit status is 1;
//!    it is 2 for an invalid command line, and `kv check` and `fs check` have their own. Closed
//!    output is no failure.
//! 3. `kv` and `daemon` are what `up` starts; the others talk to the daemon over its socket.
#![forbid(unsafe_code)]

mod administration;
mod arguments;
mod backup;
mod capture;
mod check;
mod core;
mod doctor;
mod down;
mod error;
mod fs;
mod fs_check;
mod fs_holders;
mod fs_media;
mod fs_pin;
mod fs_quota;
mod generate;
mod log_file;
mod mount;
mod output;
mod paths;
mod privilege;
mod process;
mod run;
mod service;
mod settings;
mod signals;
mod sockets;
mod ss;
mod stat;
mod status;
mod style;
mod top;
mod up;
mod vsa;

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::Parser as _;

use arguments::fs::FsCommand;
use arguments::{Arguments, Command, KvArguments, KvCommand};
use error::Error;

fn main() -> ExitCode {
    signals::begin();
    // Read now and kept: before Linux 6.4 it is in `/proc/self/auxv`, which a process that has
    // given up its privileges may not read.
    let _ = rustix::param::page_size();
    let arguments = Arguments::parse();
    if let Command::Kv(KvArguments { command: Some(KvCommand::Check(check)), .. }) = &arguments.command {
        return checked(arguments.socket.clone(), check);
    }
    if let Command::Fs(FsCommand::Check(check)) = &arguments.command {
        return fs_check::run(check).unwrap_or_else(|error| {
            let status = fs_check::status(&error);
            report(error);
            status
        });
    }
    if let Command::Run(run) = &arguments.command {
        let cause = run::run(run, arguments.socket.as_deref());
        let status = cause.status();
        report(cause);
        return ExitCode::from(status);
    }
    let service = matches!(
        arguments.command,
        Command::Daemon(_) | Command::Kv(KvArguments { command: None, .. }) | Command::Service(_)
    );
    match run(arguments) {
        Ok(()) | Err(Error::OutputClosed) => return ExitCode::SUCCESS,
        // A service's output goes to a log.
        Err(error) if service => match miette::Diagnostic::help(&error) {
            Some(help) => tracing::error!("{error}; {help}"),
            None => tracing::error!("{error}"),
        },
        Err(error) => report(error),
    }
    ExitCode::FAILURE
}

/// `sietch kv check` has an exit status of its own.
fn checked(socket: Option<std::path::PathBuf>, arguments: &arguments::CheckArguments) -> ExitCode {
    match check::run(&socket.unwrap_or_else(sietch::socket_path), arguments) {
        Ok(status) => status,
        Err(error) => {
            report(error);
            check::cannot_tell()
        }
    }
}

fn report(error: impl miette::Diagnostic + Send + Sync + 'static) {
    // Messages name their causes themselves. The hook can only be there already.
    let _ = miette::set_hook(Box::new(|_| {
        Box::new(miette::MietteHandlerOpts::new().without_cause_chain().wrap_lines(false).build())
    }));
    // If standard error is closed as well, only the exit status reports the failure.
    let _ = writeln!(std::io::stderr(), "{:?}", miette::Report::new(error));
}

fn run(arguments: Arguments) -> Result<(), Error> {
    let socket = arguments.socket;
    let client = || socket.clone().unwrap_or_else(sietch::socket_path);
    match arguments.command {
        Command::Up(up) => up::run(&up, socket),
        Command::Down => down::run(&client()),
        Command::Status(status) => status::run(&client(), status.json),
        Command::Stat(stat) => stat::run(&client(), stat),
        Command::Top(top) => top::run(&client(), top),
        Command::Ss(arguments) => ss::run(&client(), &arguments),
        Command::Sockets(arguments) => sockets::run(socket.as_deref(), &arguments),
        Command::Capture(arguments) => capture::run(&client(), &arguments),
        Command::Vsa(command) => vsa::run(&client(), &command),
        Command::Fs(command) => {
            log_to_stderr();
            fs::run(&command)
        }
        Command::Mount(arguments) => mount::run(&client(), &arguments),
        Command::Revoke(grant) if sockets::application(&grant.name).is_some() => {
            sockets::revoke(socket.as_deref(), &grant.name)
        }
        Command::Revoke(grant) => administration::revoke(&client(), &grant.name),
        Command::Restore(grant) => administration::restore(&client(), &grant.name),
        Command::Reload => administration::reload(&client()),
        Command::Doctor(doctor) => doctor::run(&doctor),
        Command::Daemon(daemon) => {
            log_to_stderr();
            service::daemon(daemon, socket)
        }
        Command::Kv(KvArguments { command: Some(KvCommand::Backup(arguments)), .. }) => {
            backup::backup(&client(), &arguments)
        }
        Command::Kv(KvArguments { command: Some(KvCommand::Restore(arguments)), .. }) => {
            backup::restore(socket, &arguments)
        }
        Command::Kv(kv) => {
            log_to_stderr();
            service::store(kv, socket)
        }
        Command::Run(arguments) => Err(Error::Run(run::run(&arguments, socket.as_deref()))),
        Command::Service(service) => {
            log_to_stderr();
            core::run(&service, &client())
        }
        Command::Completions(completions) => generate::completions(completions),
        Command::Man(man) => generate::man(&man),
    }
}

/// Lines with time and level on standard error, coloured on a terminal alone.
fn log_to_stderr() {
    let colours =
        std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    tracing_subscriber::fmt()
        .with_writer(|| log_file::LogWriter)
        .with_ansi(colours)
        .with_max_level(tracing::Level::INFO)
        .with_target(false)
        .init();
}
