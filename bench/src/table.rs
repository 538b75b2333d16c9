//! Medians, ranges, and a table for the terminal.

/// The median; 0 of an empty list.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        length if length % 2 == 1 => sorted[length / 2],
        length => f64::midpoint(sorted[length / 2 - 1], sorted[length / 2]),
    }
}

/// The smallest and the largest; zeros of an empty list.
pub(crate) fn range(values: &[f64]) -> (f64, f64) {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if values.is_empty() { (0.0, 0.0) } else { (low, high) }
}

/// Prints rows below a heading.
pub(crate) fn print(heading: &[&str], rows: &[Vec<String>]) {
    print!("{}", render(heading, rows));
}

/// Rows below a heading, columns aligned: the first to the left, the others to the right.
pub(crate) fn render(heading: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let longest = rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0);
        longest.max(heading[column].len())
    };
    let widths: Vec<usize> = (0..heading.len()).map(width).collect();
    let mut text = String::new();
    let mut line = |cells: Vec<&str>| {
        text.push_str(&format!("{:<1$}", cells[0], widths[0]));
        for (cell, width) in cells.iter().zip(&widths).skip(1) {
            text.push_str(&format!("  {cell:>width$}"));
        }
        text.push('\n');
    };
    line(heading.to_vec());
    for row in rows {
        line(row.iter().map(String::as_str).collect());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ranges() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < f64::EPSILON);
        assert_eq!(range(&[3.0, 1.0, 2.0]), (1.0, 3.0));
        assert_eq!(range(&[]), (0.0, 0.0));
    }

    #[test]
    fn columns_are_aligned_the_first_to_the_left() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let rows = [row(["get c1", "10", "1.00"]), row(["set c50 P16", "123456", "-"])];
        insta::assert_snapshot!(render(&["row", "req/s", "ratio"], &rows), @r"
        row           req/s  ratio
        get c1           10   1.00
        set c50 P16  123456      -
        ");
    }
}
