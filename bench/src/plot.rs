//! The files of a report. JSON has every figure. The SVG has for every row the ratio of Sietch to
//! Linux, with its range, against the line at 1.

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
