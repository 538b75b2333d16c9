//! The attribute that says where the data of a file belong.

use crate::pool::Class;

/// The extended attribute: its value is the name of a class of which there is a medium; others are
/// refused. That of a directory counts for the files below it, see [`crate::mover`].
pub const PIN: &[u8] = b"user.sietch.medium";

/// The class that a value of the attribute names; other values mean nothing.
pub fn class(value: &[u8]) -> Option<Class> {
    match value {
        b"nvm" => Some(Class::Nvm),
        b"ssd" => Some(Class::Ssd),
        b"hdd" => Some(Class::Hdd),
        _ => None,
    }
}
