//! The files of a report. JSON has every figure. The SVG has for every row the ratio of Sietch to
//! Linux, with its range, against the line at 1. What is measured over time has lines.

use std::path::Path;

use plotters::prelude::*;

use serde::Serialize;

use crate::error::{Error, system};

/// One bar: its name, the median ratio and the range of ratios.
#[derive(Debug, Clone)]
pub(crate) struct Bar {
    /// The subject of the measurement.
    pub name: String,
    /// The median of the pairwise ratios.
    pub ratio: f64,
    /// The smallest and the largest of them.
    pub range: (f64, f64),
}

/// Pixels a bar takes.
const BAR: u32 = 26;

/// Writes `all` to `NAME.json` and the bars to `NAME.svg` below `out`, and prints where they are.
pub(crate) fn write<T: Serialize + ?Sized>(
    out: &Path,
    name: &str,
    title: &str,
    all: &T,
    bars: &[Bar],
) -> Result<(), Error> {
    let (data, picture) = (out.join(format!("{name}.json")), out.join(format!("{name}.svg")));
    json(&data, all)?;
    ratios(&picture, title, bars)?;
    println!("wrote {} and {}", data.display(), picture.display());
    Ok(())
}

/// Writes `all` to a JSON file.
pub(crate) fn json<T: Serialize + ?Sized>(path: &Path, all: &T) -> Result<(), Error> {
    let json = serde_json::to_vec_pretty(all).map_err(system("making JSON"))?;
    std::fs::write(path, json).map_err(system("writing JSON"))
}

/// Draws the bars to an SVG file.
fn ratios(path: &Path, title: &str, bars: &[Bar]) -> Result<(), Error> {
    let failed = |cause: &dyn std::fmt::Display| Error::Plot(cause.to_string());
    let height = 110 + BAR * bars.len() as u32;
    let root = SVGBackend::new(path, (960, height)).into_drawing_area();
    root.fill(&WHITE).map_err(|e| failed(&e))?;
    let furthest = bars.iter().map(|bar| bar.range.1).fold(1.5, f64::max) * 1.05;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(300)
        .build_cartesian_2d(0.0..furthest, 0.0..bars.len() as f64)
        .map_err(|e| failed(&e))?;
    let label = |place: &f64| {
        let index = bars.len() as f64 - place - 0.5;
        bars.get(index.round() as usize).map_or_else(String::new, |bar| bar.name.clone())
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .y_labels(0)
        .y_label_formatter(&label)
        .x_desc("Sietch / Linux, median of pairs and range; right of 1 is more")
        .draw()
        .map_err(|e| failed(&e))?;
    for (index, bar) in bars.iter().enumerate() {
        let middle = bars.len() as f64 - index as f64 - 0.5;
        let colour = if bar.ratio >= 1.0 { RGBColor(32, 120, 96) } else { RGBColor(190, 110, 40) };
        let body = Rectangle::new([(0.0, middle - 0.3), (bar.ratio, middle + 0.3)], colour.mix(0.8).filled());
        let whisker = PathElement::new([(bar.range.0, middle), (bar.range.1, middle)], BLACK.stroke_width(1));
        chart.draw_series([body]).map_err(|e| failed(&e))?;
        chart.draw_series([whisker]).map_err(|e| failed(&e))?;
        let (x, y) = chart.backend_coord(&(0.0, middle));
        root.draw(&Text::new(bar.name.clone(), (x - 292, y - 7), ("sans-serif", 13)))
            .map_err(|e| failed(&e))?;
    }
    let one = PathElement::new([(1.0, 0.0), (1.0, bars.len() as f64)], BLACK.stroke_width(2));
    chart.draw_series([one]).map_err(|e| failed(&e))?;
    root.present().map_err(|e| failed(&e))
}

/// A line of a picture over time.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    /// What it shows.
    pub name: String,
    /// Seconds and values.
    pub points: Vec<(f64, f64)>,
    /// Its values are those of the axis at the right.
    pub is_right: bool,
}

/// Colours of lines, in turn.
const COLOURS: [RGBColor; 3] = [RGBColor(150, 150, 150), RGBColor(32, 120, 96), RGBColor(190, 110, 40)];

/// Draws lines over time to an SVG file, with what the axes at the left and at the right show, and
/// prints where it is.
pub(crate) fn over_time(
    path: &Path,
    title: &str,
    (left, right): (&str, &str),
    lines: &[Line],
) -> Result<(), Error> {
    let failed = |cause: &dyn std::fmt::Display| Error::Plot(cause.to_string());
    let end = |is_right: bool| {
        let values = lines.iter().filter(|line| line.is_right == is_right);
        values.flat_map(|line| &line.points).map(|(_, value)| *value).fold(1.0, f64::max) * 1.05
    };
    let seconds = lines.iter().flat_map(|line| &line.points).map(|(time, _)| *time).fold(1.0, f64::max);
    let root = SVGBackend::new(path, (960, 420)).into_drawing_area();
    root.fill(&WHITE).map_err(|e| failed(&e))?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .right_y_label_area_size(60)
        .build_cartesian_2d(0.0..seconds, 0.0..end(false))
        .map_err(|e| failed(&e))?
        .set_secondary_coord(0.0..seconds, 0.0..end(true));
    chart.configure_mesh().x_desc("seconds").y_desc(left).draw().map_err(|e| failed(&e))?;
    chart.configure_secondary_axes().y_desc(right).draw().map_err(|e| failed(&e))?;
    for (line, colour) in lines.iter().zip(COLOURS.iter().cycle()) {
        let series = LineSeries::new(line.points.iter().copied(), colour.stroke_width(2));
        let drawn = if line.is_right {
            chart.draw_secondary_series(series).map_err(|e| failed(&e))?
        } else {
            chart.draw_series(series).map_err(|e| failed(&e))?
        };
        let sample = colour.stroke_width(2);
        drawn
            .label(line.name.clone())
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 16, y)], sample));
    }
    let mut legend = chart.configure_series_labels();
    legend.background_style(WHITE.mix(0.8)).border_style(BLACK).draw().map_err(|e| failed(&e))?;
    root.present().map_err(|e| failed(&e))?;
    println!("wrote {}", path.display());
    Ok(())
}
