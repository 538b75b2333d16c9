//! LATENCY: latency spikes by their cause, and the distribution of the durations of commands.

use crate::commands::context::{Context, Outcome};
use crate::foundation::command::full_name_of;
use crate::foundation::observation::latency::{Cause, graph};
use crate::foundation::protocol::Fault;

const HELP: &[&str] = &[
    "DOCTOR",
    "    Return a human readable latency analysis report.",
    "GRAPH <event>",
    "    Return an ASCII latency graph for the <event> class.",
    "HISTORY <event>",
    "    Return time-latency samples for the <event> class.",
    "LATEST",
    "    Return the latest latency samples for all events.",
    "RESET [<event> ...]",
    "    Reset latency data of one or more <event> classes.",
    "    (default: reset all data for all event classes)",
    "HISTOGRAM [COMMAND ...]",
    "    Return a cumulative distribution of latencies in the format of a histogram for the specified command names.",
    "    If no commands are specified then all histograms are replied.",
];

pub(super) fn latency(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let subcommand = arguments[1].to_ascii_lowercase();
    let now = context.data.now().unix_ms / 1000;
    match (subcommand.as_slice(), arguments.len()) {
        (b"latest", 2) => latest(context),
        (b"history", 3) => history(context, arguments[2]),
        (b"histogram", _) => histogram(context, &arguments[2..]),
        (b"reset", _) => {
            let known: Vec<&[u8]> =
                context.latency().all().map(|(cause, _)| cause.name().as_bytes()).collect();
            let names = &arguments[2..];
            let reset = known.iter().filter(|known| names.is_empty() || names.contains(known)).count();
            context.each_store(|store| match names {
                [] => _ = store.observation.latency.reset(None),
                names => names.iter().for_each(|name| _ = store.observation.latency.reset(Some(name))),
            });
            context.reply.count(reset);
        }
        (b"doctor", 2) => {
            let threshold = context.data.settings().latency_monitor_threshold;
            let report = context.latency().report(threshold, now);
            context.reply.verbatim(report.as_bytes());
        }
        (b"graph", 3) => {
            let latency = context.latency();
            let Some((cause, series)) = latency.find(arguments[2]) else {
                let mut text = b"ERR No samples available for event '".to_vec();
                text.extend_from_slice(arguments[2]);
                text.push(b'\'');
                return Err(Fault::new(text));
            };
            context.reply.verbatim(graph(cause, series, now).as_bytes());
        }
        (b"help", 2) => context.reply.help("LATENCY", HELP),
        _ => return Err(context.subcommand_fault(arguments)),
    }
    Ok(())
}

fn latest(context: &mut Context<'_>) {
    let latency = context.latency();
    let all = latency.all();
    context.reply.array(all.len());
    for (cause, series) in all {
        let (second, milliseconds) = series.last();
        context.reply.array(4);
        context.reply.bulk(cause.name().as_bytes());
        context.reply.integer(second as i64);
        context.reply.integer(milliseconds as i64);
        context.reply.integer(series.greatest() as i64);
    }
}

fn history(context: &mut Context<'_>, event: &[u8]) {
    let latency = context.latency();
    let Some((_, series)) = latency.find(event) else {
        return context.reply.array(0);
    };
    context.reply.array(series.samples().len());
    for &(second, milliseconds) in series.samples() {
        context.reply.array(2);
        context.reply.integer(second as i64);
        context.reply.integer(milliseconds as i64);
    }
}

/// The distributions of the commands and of the parts of commits of these names, or of all. A
/// command stands for its subcommands, and `log-commit` for its parts.
fn histogram(context: &mut Context<'_>, names: &[&[u8]]) {
    let table = context.table;
    let histograms = context.histograms();
    let named = histograms.iter().map(|(&(number, subcommand), histogram)| {
        let command = table.commands()[number as usize].spec.name;
        (command, full_name_of(command, subcommand), histogram)
    });
    let commits = context.commit_histograms();
    let commits = commits.iter().map(|(&part, histogram)| (Cause::LogCommit.name(), part.into(), histogram));
    let shown: Vec<_> = named
        .chain(commits)
        .filter(|(command, full, _)| {
            let fits = |name: &&[u8]| {
                name.eq_ignore_ascii_case(command.as_bytes()) || name.eq_ignore_ascii_case(full.as_bytes())
            };
            names.is_empty() || names.iter().any(fits)
        })
        .collect();
    context.reply.map(shown.len());
    for (_, name, histogram) in shown {
        context.reply.bulk(name.as_bytes());
        context.reply.map(2);
        context.reply.bulk(b"calls");
        context.reply.integer(histogram.total() as i64);
        context.reply.bulk(b"histogram_usec");
        let pairs = histogram.distribution();
        context.reply.map(pairs.len());
        for (microseconds, count) in pairs {
            context.reply.integer(microseconds as i64);
            context.reply.integer(count as i64);
        }
    }
}
