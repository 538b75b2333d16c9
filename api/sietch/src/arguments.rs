//! The command line of a server program: its device, and options of its own.
//!
//! 1. `--vnic NAME` names the device. `--socket PATH` names the daemon's socket, if it is not at
//!    its usual path.
//! 2. Every other `--name VALUE` is the program's own option; read it with [`Arguments::value`].
//!    Words that do not begin with `--` are in [`Arguments::positional`].
//! 3. [`Stack::open`] and [`Runtime::open`] acquire the device, hold it, and make an engine with
//!    fresh randomness.

use std::path::PathBuf;
use std::str::FromStr;

use rustix::rand::{GetRandomFlags, getrandom};
use sietch_net::Config;

use crate::control::{Client, socket_path};
use crate::device::{Vnic, VnicQueue};
use crate::error::{ArgumentError, Error};
use crate::idle::HeldGrants;
use crate::runtime::Runtime;
use crate::stack::Stack;

/// A parsed command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    options: Vec<(String, String)>,
    positional: Vec<String>,
}

impl Arguments {
    /// The process' own.
    ///
    /// # Errors
    /// See [`ArgumentError`].
    pub fn from_env() -> Result<Self, ArgumentError> {
        Self::parse(std::env::args().skip(1))
    }

    /// Those in `words`.
    ///
    /// # Errors
    /// See [`ArgumentError`].
    pub fn parse(words: impl IntoIterator<Item = String>) -> Result<Self, ArgumentError> {
        let mut parsed = Self::default();
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            if !word.starts_with("--") {
                parsed.positional.push(word);
            } else if let Some((name, value)) = word.split_once('=') {
                parsed.options.push((name.to_owned(), value.to_owned()));
            } else {
                let value = words.next().ok_or_else(|| ArgumentError::NoValue(word.clone()))?;
                parsed.options.push((word, value));
            }
        }
        Ok(parsed)
    }

    /// The value of `name` (with its dashes, as in `--port`); the last one if it is given more than
    /// once.
    ///
    /// # Errors
    /// [`ArgumentError::BadValue`].
    pub fn value<T: FromStr>(&self, name: &str) -> Result<Option<T>, ArgumentError> {
        let Some((_, value)) = self.options.iter().rev().find(|(known, _)| known == name) else {
            return Ok(None);
        };
        let bad = |_| ArgumentError::BadValue { name: name.to_owned(), value: value.clone() };
        value.parse().map(Some).map_err(bad)
    }

    /// All values of `name` (with its dashes), in order.
    ///
    /// # Errors
    /// [`ArgumentError::BadValue`].
    pub fn values<T: FromStr>(&self, name: &str) -> Result<Vec<T>, ArgumentError> {
        let bad = |value: &str| ArgumentError::BadValue { name: name.to_owned(), value: value.to_owned() };
        let named = self.options.iter().filter(|(known, _)| known == name);
        named.map(|(_, value)| value.parse().map_err(|_| bad(value))).collect()
    }

    /// The words that are no options, in order.
    pub fn positional(&self) -> &[String] {
        &self.positional
    }

    /// Connects to the daemon and acquires the device named on the command line.
    ///
    /// # Errors
    /// No device is named, there is no daemon, or it refuses.
    pub fn acquire(&self) -> Result<(Client, Vnic), Error> {
        let path = self.value::<PathBuf>("--socket")?.unwrap_or_else(socket_path);
        let name = self.value::<String>("--vnic")?.ok_or(ArgumentError::NoDevice)?;
        let program = std::env::args().next().unwrap_or_default();
        let program = program.rsplit('/').next().unwrap_or_default();
        let mut client = Client::connect(&path, program)?;
        let vnic = client.acquire_vnic(&name)?;
        Ok((client, vnic))
    }

    /// The queue of that device, the configuration of an engine for it, and the grants that keep it
    /// held.
    ///
    /// # Errors
    /// As for [`Arguments::acquire`].
    pub fn hold(&self) -> Result<(VnicQueue, Config, HeldGrants), Error> {
        let (client, vnic) = self.acquire()?;
        let mut secret = [0; 16];
        getrandom(&mut secret, GetRandomFlags::empty()).map_err(|cause| Error::Io(cause.into()))?;
        let config = vnic.engine_config(secret);
        Ok((vnic.queue, config, HeldGrants { grants: vec![vnic.grant], lease: client.hold()? }))
    }
}

impl Stack<VnicQueue> {
    /// The device named on the process' command line.
    ///
    /// # Errors
    /// See [`Arguments::acquire`].
    pub fn from_args() -> Result<Self, Error> {
        Self::open(&Arguments::from_env()?)
    }

    /// The device named in `arguments`.
    ///
    /// # Errors
    /// See [`Arguments::acquire`].
    pub fn open(arguments: &Arguments) -> Result<Self, Error> {
        let (queue, config, held) = arguments.hold()?;
        Ok(Self::new(queue, &config).with_grants(held))
    }
}

impl Runtime<VnicQueue> {
    /// As [`Stack::from_args`].
    ///
    /// # Errors
    /// See [`Arguments::acquire`].
    pub fn from_args() -> Result<Self, Error> {
        Self::open(&Arguments::from_env()?)
    }

    /// As [`Stack::open`].
    ///
    /// # Errors
    /// See [`Arguments::acquire`].
    pub fn open(arguments: &Arguments) -> Result<Self, Error> {
        let (queue, config, held) = arguments.hold()?;
        Ok(Self::new(queue, &config)?.with_grants(held))
    }
}

#[cfg(test)]
mod tests;
