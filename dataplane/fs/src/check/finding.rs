//! What is wrong, and where.

use crate::pool::Item;

/// Findings after which no more are listed.
const MOST: usize = 1000;

/// What is wrong.
#[derive(Clone, Debug, Default)]
pub(super) struct Finding {
    /// Medium and offset.
    pub place: String,
    /// The inode that it is about.
    pub inode: Option<u64>,
    pub what: String,
    /// What is lost by it; empty where that is unknown.
    pub lost: String,
}

impl Finding {
    /// Something that is wrong with an item of an inode.
    pub(super) fn of(item: &Item<'_>, what: String) -> Self {
        Self { place: item.place.to_owned(), inode: Some(item.key.object), what, lost: String::new() }
    }

    /// Something that is wrong with the whole file system.
    pub(super) fn of_pool(home: &str, what: String) -> Self {
        Self { place: home.to_owned(), what, ..Self::default() }
    }

    /// The same, and what is lost.
    pub(super) fn losing(self, lost: impl Into<String>) -> Self {
        Self { lost: lost.into(), ..self }
    }

    /// As one line.
    pub(super) fn text(&self, path: Option<&str>) -> String {
        let mut text = format!("{}: ", self.place);
        if let Some(inode) = self.inode {
            text += &format!("inode {inode}, {}: ", path.unwrap_or("(no name)"));
        }
        text += &self.what;
        if !self.lost.is_empty() {
            text += &format!("; lost: {}", self.lost);
        }
        text
    }
}

/// A list that does not grow for ever.
#[derive(Debug, Default)]
pub(super) struct Findings {
    list: Vec<Finding>,
    unlisted: u64,
    unlisted_files: u64,
}

impl Findings {
    /// Takes a finding; whether it is listed.
    pub(super) fn add(&mut self, finding: Finding) -> bool {
        let has_room = self.list.len() < MOST;
        if has_room {
            self.list.push(finding);
        } else {
            self.unlisted += 1;
        }
        has_room
    }

    /// A file with damaged data is not listed.
    pub(super) fn leave_file(&mut self) {
        self.unlisted_files += 1;
    }

    /// Whether what is left is kept for files that are not named yet.
    pub(super) fn is_half_full(&self) -> bool {
        self.list.len() >= MOST / 2
    }

    /// Findings that are not in the list.
    pub(super) fn unlisted(&self) -> u64 {
        self.unlisted
    }

    /// Files with damaged data that are not in the list.
    pub(super) fn unlisted_files(&self) -> u64 {
        self.unlisted_files
    }

    pub(super) fn into_list(self) -> Vec<Finding> {
        self.list
    }
}

/// A name as text on one line.
pub(super) fn shown(name: &[u8]) -> String {
    let mut text = String::new();
    for letter in String::from_utf8_lossy(name).chars() {
        if letter.is_control() { text.extend(letter.escape_default()) } else { text.push(letter) }
    }
    text
}
