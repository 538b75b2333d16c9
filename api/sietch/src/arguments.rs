//! The command line of a program that is nothing but a server: which device, and the program's own
//! options.
//!
//! 1. `--vnic NAME` names the device; `--socket PATH` the daemon, where it is not found by itself.
//! 2. Every other `--name VALUE` is the program's own, asked for with [`Arguments::value`]; what
//!    does not begin with `--` is in [`Arguments::rest`].
//! 3. From there [`Stack::open`] and [`Runtime::open`] acquire the device, hold it, and make an
//!    engine with fresh randomness.

use std::path::PathBuf;
use std::str::FromStr;

use rustix::rand::{GetRandomFlags, getrandom};
use sietch_net::Config;

use crate::client::Client;
use crate::error::Error;
use crate::path::socket_path;
use crate::rest::HeldGrants;
use crate::runtime::Runtime;
use crate::stack::Stack;
use crate::vnic::{Vnic, VnicQueue};

/// What is wrong with a command line.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ArgumentError {
    /// An option has no value.
    #[error("{0} needs a value: write {0} VALUE")]
    NoValue(String),
    /// A value is not what it should be.
    #[error("{name} {value}: not understood; see the beginning of the program's source for what it takes")]
    BadValue {
        /// The option.
        name: String,
        /// What was given.
        value: String,
    },
    /// No device is named.
    #[error("no device is named: give --vnic NAME (see `sietch status`)")]
    NoDevice,
}

/// A parsed command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    options: Vec<(String, String)>,
    rest: Vec<String>,
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
                parsed.rest.push(word);
            } else if let Some((name, value)) = word.split_once('=') {
                parsed.options.push((name.to_owned(), value.to_owned()));
            } else {
                let value = words.next().ok_or_else(|| ArgumentError::NoValue(word.clone()))?;
                parsed.options.push((word, value));
            }
        }
        Ok(parsed)
    }

    /// The value of `--name` (give it with its dashes), the last one if it stands there more than
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

    /// All values of `--name`, in order.
    ///
    /// # Errors
    /// [`ArgumentError::BadValue`].
    pub fn values<T: FromStr>(&self, name: &str) -> Result<Vec<T>, ArgumentError> {
        let bad = |value: &str| ArgumentError::BadValue { name: name.to_owned(), value: value.to_owned() };
        let named = self.options.iter().filter(|(known, _)| known == name);
        named.map(|(_, value)| value.parse().map_err(|_| bad(value))).collect()
    }

    /// What is no option.
    pub fn rest(&self) -> &[String] {
        &self.rest
    }

    /// Connects to the daemon and acquires the device named on the command line.
    ///
    /// # Errors
    /// None is named, there is no daemon, or it refuses.
    pub fn acquire(&self) -> Result<(Client, Vnic), Error> {
        let path = self.value::<PathBuf>("--socket")?.unwrap_or_else(socket_path);
        let name = self.value::<String>("--vnic")?.ok_or(ArgumentError::NoDevice)?;
        let program = std::env::args().next().unwrap_or_default();
        let program = program.rsplit('/').next().unwrap_or_default();
        let mut client = Client::connect(&path, program)?;
        let vnic = client.acquire_vnic(&name)?;
        Ok((client, vnic))
    }

    /// The queue of that device, what an engine for it is told, and what keeps it held.
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
