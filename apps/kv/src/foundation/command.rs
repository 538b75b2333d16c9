//! What is known of a command without running it.
//!
//! [`CommandSpec`] describes one; access rules, COMMAND and the checks before a call read it. The
//! handlers are in [`commands`](crate::commands), above the data that they change.

mod arguments;
mod names;
mod spec;
mod subcommands;

pub(crate) use arguments::{integer, is, timeout_milliseconds};
pub(crate) use names::Names;
pub(crate) use spec::{CommandSpec, Flags, Keys, flag};
pub(crate) use subcommands::{
    full_name, full_name_of, refuse_subcommand, refused_subcommand, subcommand, subcommands,
};
