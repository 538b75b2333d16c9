//! Every counter is changed and shown.
//!
//! 1. A counter is a field of a struct in a `metrics.rs`.
//! 2. Some file of its crate assigns to it or adds to it.
//! 3. Some file that is not a test reads it, or destructures its struct without `..`.

use crate::sources::SourceFile;

/// Reports the counters that no code changes or shows.
pub(super) fn check(sources: &[SourceFile], findings: &mut Vec<String>) {
    for metrics in sources.iter().filter(|source| source.path.ends_with("/metrics.rs")) {
        let Some(folder) = metrics.path.find("/src/").map(|end| &metrics.path[..end + 5]) else {
            continue;
        };
        let crate_files: Vec<&SourceFile> = sources
            .iter()
            .filter(|source| source.path.starts_with(folder) && source.path.ends_with(".rs"))
            .collect();
        for (line, field) in fields(&metrics.text) {
            if !is_shown(sources, &metrics.text, field) {
                findings.push(format!(
                    "{}:{line}: counter `{field}` is never shown; show it or remove it",
                    metrics.path
                ));
            }
            if !crate_files.iter().any(|source| changes(&source.text, field)) {
                findings.push(format!(
                    "{}:{line}: counter `{field}` is never changed; count with it or remove it",
                    metrics.path
                ));
            }
        }
    }
}

/// Whether some file that is not a test reads the field, or destructures its struct.
fn is_shown(sources: &[SourceFile], own: &str, field: &str) -> bool {
    // A macro that lists the fields generates a function that shows them.
    let by_macro = own.contains("macro_rules!");
    let is_test = |path: &str| path.contains("/tests/") || path.ends_with("tests.rs");
    let mut others = sources.iter().filter(|source| source.path.ends_with(".rs") && !is_test(&source.path));
    by_macro || others.any(|source| reads(&source.text, field) || destructures(&source.text, field))
}

/// Whether `text` has a pattern like `let Counters { a, field } = ` without `..`.
fn destructures(text: &str, field: &str) -> bool {
    text.match_indices("} = ").any(|(end, _)| {
        let names = text[..end].rsplit_once('{').map_or("", |(_, names)| names);
        !names.contains("..") && names.split(',').any(|name| name.trim() == field)
    })
}

/// Whether `text` reads `.field`.
fn reads(text: &str, field: &str) -> bool {
    let member = format!(".{field}");
    text.match_indices(&member).any(|(start, _)| {
        let rest = &text[start + member.len()..];
        let whole =
            !rest.starts_with(|letter: char| letter.is_alphanumeric() || letter == '_' || letter == '(');
        let rest = rest.trim_start();
        let changed = ["+=", "-=", ".fetch_", ".store"].iter().any(|change| rest.starts_with(change))
            || rest.starts_with('=') && !rest.starts_with("==");
        whole && !changed
    })
}

/// `(line, name)` of each `pub name: u64` field.
fn fields(text: &str) -> Vec<(usize, &str)> {
    text.lines()
        .enumerate()
        .filter_map(|(index, line)| {
            let field = line.trim().strip_prefix("pub ")?.strip_suffix(": u64,")?;
            field
                .chars()
                .all(|letter| letter.is_alphanumeric() || letter == '_')
                .then_some((index + 1, field))
        })
        .collect()
}

/// Whether `text` assigns or adds to `.field`, borrows it mutably, or sets it in a struct literal.
fn changes(text: &str, field: &str) -> bool {
    let member = format!(".{field}");
    text.match_indices(&member).any(|(start, _)| {
        let rest = text[start + member.len()..].trim_start();
        rest.starts_with("+=")
            || rest.starts_with("-=")
            || (rest.starts_with('=') && !rest.starts_with("=="))
            || rest.starts_with(".fetch_")
            || rest.starts_with(".store")
    }) || text.contains(&format!("{field}: self."))
        || text.contains(&format!("&mut self.{field}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(code: &str) -> Vec<String> {
        let mut findings = Vec::new();
        let sources = [
            SourceFile {
                path: "net/src/metrics.rs".into(),
                text: "pub struct M {\n    pub drops: u64,\n}\n".into(),
            },
            SourceFile { path: "net/src/fast.rs".into(), text: code.into() },
        ];
        check(&sources, &mut findings);
        findings
    }

    #[test]
    fn a_counter_that_no_code_changes_or_shows_is_found() {
        insta::assert_snapshot!(findings("self.metrics.other += 1;").join("\n"), @r"
        net/src/metrics.rs:2: counter `drops` is never shown; show it or remove it
        net/src/metrics.rs:2: counter `drops` is never changed; count with it or remove it
        ");
    }

    #[test]
    fn changing_a_counter_does_not_show_it() {
        assert_eq!(findings("show(m.drops);").len(), 1);
        assert_eq!(findings("self.metrics.drops += 1;").len(), 1);
        assert_eq!(findings("self.metrics.drops += 1; self.drops_of(1);").len(), 1);
        assert_eq!(findings("self.metrics.drops += 1; let M { drops, .. } = m;").len(), 1);
    }

    #[test]
    fn a_counter_that_is_changed_and_shown_passes() {
        assert!(findings("self.metrics.drops += 1; show(m.drops);").is_empty());
        assert!(findings("self.metrics.drops += 1; let M { drops } = m;").is_empty());
    }
}
