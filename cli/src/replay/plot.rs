//! The numbers of a replay as a drawing, in SVG.

use std::fmt::Write;

use super::{Report, memory_name};

/// Width of the drawing.
const WIDTH: f64 = 1080.0;
/// Left and right of a chart.
const LEFT: f64 = 60.0;
const RIGHT: f64 = WIDTH - 20.0;
/// Height of a chart.
const HEIGHT: f64 = 260.0;
/// A colour for each drafter.
const COLOURS: [&str; 4] = ["#a0a6ad", "#6d9dc5", "#f0a45d", "#c8553d"];

/// A chart of the drafters by task, where memory stands pale on top, and one of the memory's sizes.
pub fn svg(report: &Report) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} 750\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>"
    );
    bars(&mut out, report, 60.0);
    sizes(&mut out, report, 450.0);
    out.push_str("</svg>\n");
    out
}

/// A vertical axis from 1 to a number above `most`, and the height at which a number stands.
fn axis(out: &mut String, most: f64, top: f64) -> impl Fn(f64) -> f64 + use<> {
    let most = if most.is_finite() { most.max(1.0) } else { 1.0 };
    // At most eight lines.
    let step = [0.1, 0.25, 0.5, 1.0, 2.0, 4.0].into_iter().find(|step| (most - 1.0) / step <= 8.0).unwrap_or(8.0);
    let n_lines = ((most - 1.0) / step).ceil().max(1.0);
    let y = move |number: f64| top + HEIGHT * (1.0 - (number - 1.0) / (n_lines * step));
    for line in 0..=n_lines as usize {
        let number = 1.0 + step * line as f64;
        let height = y(number);
        let _ = writeln!(
            out,
            "<path d=\"M{LEFT} {height:.1}H{RIGHT}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{number}</text>",
            LEFT - 8.0,
            height + 4.0
        );
    }
    y
}

fn label(out: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let plain: String = text.chars().filter(|c| !c.is_control()).collect();
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{plain}</text>");
}

fn bars(out: &mut String, report: &Report, top: f64) {
    let (alone, remembering) = report.drafters.split_at(report.drafters.len() / 2);
    label(out, LEFT, top - 38.0, "start", "Tokens a step by task; pale: with memory");
    for (i, (drafter, colour)) in alone.iter().zip(COLOURS).enumerate() {
        let x = LEFT + 180.0 * i as f64;
        let _ =
            writeln!(out, "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>", top - 27.0);
        label(out, x + 18.0, top - 16.0, "start", &format!("{} {}", drafter.name, drafter.nodes));
    }
    // The tasks, then all of them.
    let numbers = |i: usize, task: Option<usize>| -> (f64, f64) {
        let of = |report: &super::DrafterReport| match task {
            Some(task) => report.tasks[task].tokens_per_step,
            None => report.tokens_per_step,
        };
        (of(&alone[i]), of(&remembering[i]))
    };
    let tasks = alone.first().map_or(&[][..], |first| &first.tasks);
    let columns: Vec<Option<usize>> = (0..tasks.len()).map(Some).chain([None]).collect();
    let all = columns.iter().flat_map(|task| (0..alone.len()).map(|i| numbers(i, *task)));
    let most = all.fold(1.0, |most: f64, (a, b)| most.max(a).max(b));
    let y = axis(out, most, top);
    let column_width = (RIGHT - LEFT) / columns.len() as f64;
    let width = column_width * 0.8 / alone.len().max(1) as f64;
    for (column, task) in columns.iter().enumerate() {
        let left = LEFT + column_width * (column as f64 + 0.1);
        for (i, colour) in (0..alone.len()).zip(COLOURS) {
            let (plain, with_memory) = numbers(i, *task);
            for (number, opacity) in [(with_memory, 0.4), (plain, 1.0)] {
                let _ = writeln!(
                    out,
                    "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\" \
                     opacity=\"{opacity}\"/>",
                    left + width * i as f64,
                    y(number),
                    width * 0.92,
                    y(1.0) - y(number)
                );
            }
        }
        let name = task.map_or("all tasks", |task| &tasks[task].task);
        // In two heights, since names are wider than columns.
        label(out, left + column_width * 0.4, top + HEIGHT + 20.0 + 16.0 * (column % 2) as f64, "middle", name);
    }
}

fn sizes(out: &mut String, report: &Report, top: f64) {
    label(out, LEFT, top - 20.0, "start", "Tokens a step of context mixing with 32 nodes, by the memory's tokens");
    let sizes = &report.memory_sizes;
    let y = axis(out, sizes.iter().fold(1.0, |most: f64, size| most.max(size.tokens_per_step)), top);
    let x = |i: usize| LEFT + (RIGHT - LEFT) * (i as f64 + 0.5) / sizes.len().max(1) as f64;
    let points = sizes.iter().enumerate().map(|(i, size)| format!("{:.1},{:.1}", x(i), y(size.tokens_per_step)));
    let _ = writeln!(
        out,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>",
        points.collect::<Vec<_>>().join(" "),
        COLOURS[3]
    );
    for (i, size) in sizes.iter().enumerate() {
        let (x, y) = (x(i), y(size.tokens_per_step));
        let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{}\"/>", COLOURS[3]);
        label(out, x, y - 9.0, "middle", &format!("{:.2}", size.tokens_per_step));
        label(out, x, top + HEIGHT + 20.0, "middle", &memory_name(size.memory));
    }
}
