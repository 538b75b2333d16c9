//! The ECN field of a network header (RFC 3168 section 5).

/// The ECN field of a packet (RFC 3168 section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum EcnCodepoint {
    /// Its sender does not respond to CE marks.
    #[default]
    NotEct = 0,
    /// Its sender responds to CE marks as in L4S (RFC 9331).
    Ect1 = 1,
    /// Its sender responds to CE marks.
    Ect0 = 2,
    /// It is CE-marked: it met congestion.
    Ce = 3,
}

impl EcnCodepoint {
    /// What two bits mean.
    #[inline]
    pub const fn of(bits: u8) -> Self {
        match bits & 3 {
            1 => Self::Ect1,
            2 => Self::Ect0,
            3 => Self::Ce,
            _ => Self::NotEct,
        }
    }
}
