//! A check and its verdict.

use serde::Serialize;

use crate::style::Tone;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    /// Nothing is missing.
    Ok,
    /// Sietch runs, with less performance or fewer features.
    Limited,
    /// VNICs cannot run; kernel sockets can.
    Missing,
    /// Not even the fallback can run.
    Broken,
}

impl Verdict {
    /// Its word and colour in the table.
    pub(super) fn word(self) -> (&'static str, Tone) {
        match self {
            Self::Ok => ("ok", Tone::Good),
            Self::Limited => ("limited", Tone::Warning),
            Self::Missing => ("missing", Tone::Warning),
            Self::Broken => ("broken", Tone::Bad),
        }
    }
}

/// One thing examined.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Check {
    /// The subject.
    pub name: &'static str,
    /// How it ended.
    pub verdict: Verdict,
    /// The finding.
    pub found: String,
    /// The fix, unless the verdict is `ok`.
    pub fix: Option<String>,
}

impl Check {
    /// A check that found nothing to fix.
    pub(super) fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Ok, found: found.into(), fix: None }
    }

    /// A check that found something to fix.
    pub(super) fn not(
        verdict: Verdict,
        name: &'static str,
        found: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { name, verdict, found: found.into(), fix: Some(fix.into()) }
    }
}
