//! Compares the results of two runs of a program.

use std::collections::HashMap;

use crate::program::Program;

/// The first step whose results differ: its number, and both results with normalised ports.
pub(crate) fn difference(kernel: &[String], shim: &[String]) -> Option<(usize, String, String)> {
    let (kernel, shim) = (normalised(kernel), normalised(shim));
    let nothing = "(nothing)".to_owned();
    (0..kernel.len().max(shim.len())).find_map(|index| {
        let (one, other) = (kernel.get(index).unwrap_or(&nothing), shim.get(index).unwrap_or(&nothing));
        (one != other).then(|| (number(one), body(one).to_owned(), body(other).to_owned()))
    })
}

fn number(line: &str) -> usize {
    line.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(usize::MAX)
}

fn body(line: &str) -> &str {
    if number(line) == usize::MAX { line } else { line.split_once(' ').map_or("", |(_, body)| body) }
}

/// Whether the executor hung or ended before the end of the program.
pub(crate) fn ended_early(answer: &[String]) -> bool {
    answer.last().is_none_or(|line| number(line) == usize::MAX)
}

/// Replaces port numbers, which the kernel chooses: the first to appear becomes `@p1`, the next
/// `@p2`.
pub(crate) fn normalised(lines: &[String]) -> Vec<String> {
    let mut ports: HashMap<String, usize> = HashMap::new();
    lines
        .iter()
        .map(|line| {
            let mut text = String::new();
            let mut rest = line.as_str();
            while let Some(at) = rest.find('@') {
                let (before, after) = rest.split_at(at + 1);
                let end = after.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(after.len());
                text += before;
                if end > 0 {
                    let next = ports.len() + 1;
                    text += &format!("p{}", ports.entry(after[..end].to_owned()).or_insert(next));
                }
                rest = &after[end..];
            }
            text + rest
        })
        .collect()
}

/// A report: each step with both results.
pub(crate) fn side_by_side(program: &Program, kernel: &[String], shim: &[String]) -> String {
    let (kernel, shim) = (normalised(kernel), normalised(shim));
    let mut text = String::new();
    for (number, step) in program.steps.iter().enumerate() {
        text += &format!("{number:3} {step}\n");
        let prefix = format!("{number} ");
        let of = |lines: &[String]| {
            let found: Vec<_> = lines.iter().filter_map(|line| line.strip_prefix(&prefix)).collect();
            found.join("; ")
        };
        let (one, other) = (of(&kernel), of(&shim));
        if one == other {
            text += &format!("        {one}\n");
        } else {
            text += &format!("        kernel: {one}\n        shim:   {other}\n");
        }
    }
    for number in program.steps.len()..kernel.len().max(shim.len()) {
        let (one, other) = (kernel.get(number), shim.get(number));
        if one != other {
            text += &format!("    kernel: {one:?}\n    shim:   {other:?}\n");
        }
    }
    for (name, lines) in [("kernel", &kernel), ("shim", &shim)] {
        if let Some(last) = lines.last().filter(|line| number(line) == usize::MAX) {
            text += &format!("    {name}: {last}\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_named_by_their_first_appearance() {
        let lines = ["0 127.0.0.1@400", "1 127.0.0.1@500 127.0.0.1@400 @none"].map(str::to_owned);
        assert_eq!(normalised(&lines), ["0 127.0.0.1@p1", "1 127.0.0.1@p2 127.0.0.1@p1 @none"]);
    }

    #[test]
    fn the_first_difference_is_found() {
        let kernel = ["0 0", "1 -1 EBADF"].map(str::to_owned);
        let shim = ["0 0", "1 0"].map(str::to_owned);
        assert_eq!(difference(&kernel, &shim), Some((1, "-1 EBADF".to_owned(), "0".to_owned())));
        assert_eq!(difference(&kernel, &kernel), None);
        assert!(difference(&kernel, &kernel[..1]).is_some());
    }
}
