//! Rules for a single file, so that a reviewer need not check them.

use crate::sources::SourceFile;

/// Lines after which a file hides a second idea.
const FILE_LINES: usize = 800;

/// Lines after which a function hides a second idea. The soft cap of the design is 70; a table or a
/// flat match may need a few more, so the hard limit is a little higher.
const FUNCTION_LINES: usize = 90;

/// Most columns of a line that is a comment.
const COMMENT_COLUMNS: usize = 100;

/// Crates that may contain `unsafe`: each block there has a SAFETY line. `sim/packetdrill` is a C
/// interface for tests.
const UNSAFE_FOLDERS: [&str; 6] =
    ["foundation/ring/", "device/nic/", "device/disk/", "device/socket/", "api/posix/", "sim/packetdrill/"];

/// Module names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 5] = ["utils", "util", "helpers", "common", "manager"];

/// Reports the findings of every file.
pub(super) fn check(sources: &[SourceFile], findings: &mut Vec<String>) {
    for source in sources {
        // This file contains the words that it searches for.
        if source.path == "xtask/src/tidy/files.rs" {
            continue;
        }
        if is_text(&source.path) {
            check_words(source, findings);
        }
        if source.path.ends_with(".rs") {
            check_length(source, findings);
            check_name(source, findings);
            check_unsafe(source, findings);
        }
    }
}

fn is_text(path: &str) -> bool {
    [".rs", ".md", ".toml", ".sh"].iter().any(|ending| path.ends_with(ending))
        && !path.starts_with("docs/generated/")
}

fn check_words(source: &SourceFile, findings: &mut Vec<String>) {
    for (index, line) in source.text.lines().enumerate() {
        let place = || format!("{}:{}", source.path, index + 1);
        if ["TODO", "FIXME", "XXX:", "HACK"].iter().any(|word| line.contains(word)) {
            findings.push(format!("{}: a leftover to-do; do it, or write an issue", place()));
        }
        if source.path.ends_with(".rs") && !line.is_ascii() {
            findings.push(format!("{}: not ASCII; write it with ASCII or an escape", place()));
        }
        let comment = source.path.ends_with(".rs") && line.trim_start().starts_with("//");
        if comment && line.chars().count() > COMMENT_COLUMNS {
            findings.push(format!("{}: a comment past {COMMENT_COLUMNS} columns; wrap it", place()));
        }
        if line.ends_with(' ') && !source.path.ends_with(".md") {
            findings.push(format!("{}: trailing space; remove it", place()));
        }
    }
}

fn check_length(source: &SourceFile, findings: &mut Vec<String>) {
    let lines: Vec<&str> = source.text.lines().collect();
    if lines.len() > FILE_LINES {
        findings.push(format!(
            "{}:1: {} lines, more than {FILE_LINES}; split it by idea",
            source.path,
            lines.len()
        ));
    }
    let mut start = None;
    for (index, line) in lines.iter().enumerate() {
        let indentation = line.len() - line.trim_start().len();
        if start.is_none() && is_function(line.trim_start()) && !line.trim_end().ends_with(['}', ';']) {
            start = Some((index, indentation));
        } else if let Some((first, depth)) = start
            && indentation == depth
            && line.trim() == "}"
        {
            let length = index - first + 1;
            if length > FUNCTION_LINES {
                findings.push(format!(
                    "{}:{}: a function of {length} lines, more than {FUNCTION_LINES}; split it by idea",
                    source.path,
                    first + 1
                ));
            }
            start = None;
        } else if let Some((_, depth)) = start
            && indentation == depth
            && line.trim_end().ends_with(';')
        {
            start = None; // a declaration without a body
        }
    }
}

fn is_function(line: &str) -> bool {
    let words = [
        "fn ",
        "pub fn ",
        "pub(crate) fn ",
        "pub(super) fn ",
        "async fn ",
        "pub async fn ",
        "unsafe fn ",
        "pub unsafe fn ",
        "const fn ",
        "pub const fn ",
    ];
    words.iter().any(|word| line.starts_with(word))
}

fn check_name(source: &SourceFile, findings: &mut Vec<String>) {
    let empty = source.path.trim_end_matches(".rs").split('/').any(|part| EMPTY_NAMES.contains(&part));
    if empty {
        findings.push(format!("{}:1: an empty name; name the file for its content", source.path));
    }
}

fn check_unsafe(source: &SourceFile, findings: &mut Vec<String>) {
    let allowed =
        UNSAFE_FOLDERS.iter().any(|folder| source.path.starts_with(folder)) || source.path.contains("/tests");
    let lines: Vec<&str> = source.text.lines().collect();
    for (index, line) in lines.iter().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        if !(code.contains("unsafe {") || code.contains("unsafe impl")) {
            continue;
        }
        if !allowed {
            findings.push(format!(
                "{}:{}: unsafe outside the device crates; move it down",
                source.path,
                index + 1
            ));
        }
        // The reason is in the comment block directly above, or above the statement the block
        // ends.
        let above = lines[index.saturating_sub(12)..=index].iter().any(|line| line.contains("SAFETY:"));
        if !above {
            findings.push(format!(
                "{}:{}: unsafe without a SAFETY line; state why it is sound",
                source.path,
                index + 1
            ));
        }
    }
    let crate_root = source.path.ends_with("src/lib.rs") || source.path.ends_with("src/main.rs");
    let forbids = source.text.contains("#![forbid(unsafe_code)]");
    if crate_root && !allowed && !forbids {
        findings.push(format!("{}:1: no #![forbid(unsafe_code)]; add it", source.path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> String {
        let mut findings = Vec::new();
        check(&[SourceFile { path: path.into(), text: text.into() }], &mut findings);
        findings.join("\n")
    }

    #[test]
    fn each_finding_has_its_place_and_its_fix() {
        let wide = format!("// {}\n", "x".repeat(COMMENT_COLUMNS - 2));
        let long = format!("fn long() {{\n{}}}\n", "    let a = 1;\n".repeat(FUNCTION_LINES));
        let all = [
            findings("cli/src/line.rs", &format!("// TODO later\n// caf\u{e9}\n{wide}let a = 1; \n")),
            findings("cli/src/file.rs", &"// line\n".repeat(FILE_LINES + 1)),
            findings("cli/src/function.rs", &long),
            findings("cli/src/utils.rs", ""),
            findings("apps/kv/src/lib.rs", "fn f() { unsafe { g() } }\n"),
        ];
        insta::assert_snapshot!(all.join("\n"), @r"
        cli/src/line.rs:1: a leftover to-do; do it, or write an issue
        cli/src/line.rs:2: not ASCII; write it with ASCII or an escape
        cli/src/line.rs:3: a comment past 100 columns; wrap it
        cli/src/line.rs:4: trailing space; remove it
        cli/src/file.rs:1: 801 lines, more than 800; split it by idea
        cli/src/function.rs:1: a function of 92 lines, more than 90; split it by idea
        cli/src/utils.rs:1: an empty name; name the file for its content
        apps/kv/src/lib.rs:1: unsafe outside the device crates; move it down
        apps/kv/src/lib.rs:1: unsafe without a SAFETY line; state why it is sound
        apps/kv/src/lib.rs:1: no #![forbid(unsafe_code)]; add it
        ");
    }

    #[test]
    fn files_and_functions_of_the_greatest_length_pass() {
        assert_eq!(findings("cli/src/a.rs", &"// line\n".repeat(FILE_LINES)), "");
        let body = "    let a = 1;\n".repeat(FUNCTION_LINES - 2);
        assert_eq!(findings("cli/src/a.rs", &format!("fn long() {{\n{body}}}\n")), "");
    }

    #[test]
    fn a_declaration_is_not_a_long_function() {
        let body = "    let a = 1;\n".repeat(FUNCTION_LINES);
        assert_eq!(findings("cli/src/a.rs", &format!("fn short();\n{body}\n}}\n")), "");
    }

    #[test]
    fn a_comment_of_the_greatest_width_and_wider_code_pass() {
        let wide = "x".repeat(COMMENT_COLUMNS - 3);
        assert_eq!(findings("cli/src/a.rs", &format!("// {wide}\n")), "");
        assert_eq!(findings("cli/src/a.rs", &format!("f(\"{wide}x\"); // why\n")), "");
    }

    #[test]
    fn unsafe_with_its_reason_in_a_device_crate_passes() {
        let text = "// SAFETY: g has no contract.\nunsafe { g() }\n";
        assert_eq!(findings("foundation/ring/src/a.rs", text), "");
    }
}
