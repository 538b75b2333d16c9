//! `sietch fs quota`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

use super::Bytes;

/// Whose limits.
#[derive(Clone, Debug, Args)]
pub(crate) struct FsQuotaArguments {
    /// A directory below a mount; or the folder of a file system that is served, or that nothing
    /// uses
    #[arg(value_name = "DIR")]
    pub path: PathBuf,

    /// Only this user, by name or number
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,

    /// Set how many bytes the user may have, as in 10gib; none: as many as there are
    #[arg(long, value_name = "SIZE", requires = "user")]
    pub bytes: Option<Most<Bytes>>,

    /// Set how many files and directories the user may have; none: as many as there are
    #[arg(long, value_name = "NUMBER", requires = "user")]
    pub inodes: Option<Most<u64>>,

    /// Count again what all users have, in the folder of a file system that nothing uses; limits
    /// stay
    #[arg(long, conflicts_with_all = ["user", "json"])]
    pub recount: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Most<T> {
    /// There is none.
    None,
    /// So many.
    Some(T),
}

impl<T: Into<u64>> Most<T> {
    /// The limit, where 0 is none.
    pub(crate) fn number(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Some(number) => number.into(),
        }
    }
}

impl<T> FromStr for Most<T>
where
    T: FromStr + Into<u64> + Copy,
    T::Err: std::fmt::Display,
{
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::None);
        }
        let number: T = text.parse().map_err(|cause: T::Err| cause.to_string())?;
        if number.into() == 0 {
            return Err("a limit of 0 would mean no limit; write none, or a number from 1 on".to_owned());
        }
        Ok(Self::Some(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_number_or_none() {
        assert_eq!("2gib".parse(), Ok(Most::Some(Bytes(2 << 30))));
        assert_eq!("none".parse::<Most<u64>>(), Ok(Most::None));
        assert_eq!("7".parse::<Most<u64>>().map(Most::number), Ok(7));
        for wrong in ["0", "", "-1", "x"] {
            assert!(wrong.parse::<Most<u64>>().is_err(), "{wrong:?}");
        }
        assert!("0mb".parse::<Most<Bytes>>().is_err());
    }
}
