//! INFO, with the fields that tools read.
//!
//! Sections and fields have Redis' names where they mean the same. The fields of saves and of
//! rewrites both show the compaction of the log; fields of the log that Redis lacks begin with
//! `log_` and `recovery_`.

use std::fmt::Write;

use crate::clients::Clients;
use crate::commands::context::{Context, Outcome};
use crate::commands::pubsub::{channel_count, pattern_count};
use crate::data::keyspace::{NEVER, Store};
use crate::foundation::command::{full_name_of, is};
use crate::foundation::settings::REDIS_VERSION;

/// The sections, and whether they are shown when none is named.
const SECTIONS: [(&str, bool); 13] = [
    ("server", true),
    ("clients", true),
    ("memory", true),
    ("persistence", true),
    ("stats", true),
    ("replication", true),
    ("cpu", true),
    ("modules", true),
    ("commandstats", false),
    ("errorstats", true),
    ("latencystats", false),
    ("cluster", true),
    ("keyspace", true),
];

pub(super) fn info(context: &mut Context<'_>, arguments: &[&[u8]]) -> Outcome {
    let wanted = &arguments[1..];
    let any = |word: &str| wanted.iter().any(|argument| is(argument, word));
    let everything = any("all") || any("everything");
    let default = wanted.is_empty() || any("default");
    let mut text = String::new();
    for (section, by_default) in SECTIONS {
        if everything || default && by_default || any(section) {
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            write_section(context, section, &mut text);
        }
    }
    context.reply.verbatim(text.as_bytes());
    Ok(())
}

/// Writes lines of `name:value`.
struct Lines<'a>(&'a mut String);

impl Lines<'_> {
    fn put(&mut self, name: &str, value: impl std::fmt::Display) {
        // Writing to a string cannot fail.
        let _ = write!(self.0, "{name}:{value}\r\n");
    }
}

fn write_section(context: &Context<'_>, section: &str, text: &mut String) {
    let mut title = section.to_owned();
    if section == "cpu" {
        title = "CPU".to_owned();
    } else if let Some(first) = title.get_mut(0..1) {
        first.make_ascii_uppercase();
    }
    let _ = write!(text, "# {title}\r\n");
    let mut lines = Lines(text);
    let store = context.data.store_ref();
    match section {
        "server" => server(context, store, &mut lines),
        "clients" => {
            let blocked: usize = context.all_clients().map(Clients::blocked).sum();
            let with_timeout: usize = context.all_clients().map(Clients::with_timeout).sum();
            lines.put("connected_clients", context.all_clients().map(Clients::count).sum::<usize>());
            lines.put("cluster_connections", 0);
            lines.put("maxclients", store.settings.maxclients);
            lines.put("blocked_clients", blocked);
            lines.put("tracking_clients", 0);
            lines.put("clients_in_timeout_table", with_timeout);
        }
        "memory" => memory(context, store, &mut lines),
        "persistence" => persistence(context, context.coordinator(), &mut lines),
        "stats" => stats(context, store, &mut lines),
        "replication" => {
            lines.put("role", "master");
            lines.put("connected_slaves", 0);
            lines.put("master_failover_state", "no-failover");
            lines.put("master_repl_offset", 0);
            lines.put("second_repl_offset", -1);
            lines.put("repl_backlog_active", 0);
        }
        "commandstats" => {
            let metrics = context.metrics();
            let rows = context.table.commands().iter().zip(&metrics.by_command);
            for (command, count) in rows.filter(|(_, count)| count.calls + count.rejected > 0) {
                // The times are of those calls that were timed; see `foundation/observation.rs`.
                let per_call = count.nanoseconds as f64 / 1000.0 / count.timed.max(1) as f64;
                lines.put(
                    &format!("cmdstat_{}", command.spec.name),
                    format_args!(
                        "calls={},usec={},usec_per_call={per_call:.2},rejected_calls={},failed_calls={}",
                        count.calls,
                        count.nanoseconds / 1000,
                        count.rejected,
                        count.failed
                    ),
                );
            }
        }
        "errorstats" => {
            for (code, count) in &context.metrics().by_error {
                let code = String::from_utf8_lossy(code);
                lines.put(&format!("errorstat_{code}"), format_args!("count={count}"));
            }
        }
        "latencystats" => latencies(context, &mut lines),
        "cpu" => {
            let usage = context.coordinator().persistence.usage;
            lines.put("used_cpu_sys", format_args!("{:.6}", usage.system_ticks as f64 / 100.0));
            lines.put("used_cpu_user", format_args!("{:.6}", usage.user_ticks as f64 / 100.0));
            lines.put("used_cpu_sys_children", "0.000000");
            lines.put("used_cpu_user_children", "0.000000");
        }
        "cluster" => lines.put("cluster_enabled", 0),
        "keyspace" => {
            for number in 0..store.database_count() {
                if store.len(number) > 0 {
                    lines.put(
                        &format!("db{number}"),
                        format_args!(
                            "keys={},expires={},avg_ttl=0",
                            store.len(number),
                            store.volatile_count(number)
                        ),
                    );
                }
            }
        }
        _ => {}
    }
}

fn server(context: &Context<'_>, store: &Store, lines: &mut Lines<'_>) {
    let now = context.data.now();
    // Each shard has begun when its first client came.
    let started_ns = context.stores().map(|store| store.started_ns).filter(|&at| at > 0).min();
    let uptime = now.monotonic_ns.saturating_sub(started_ns.unwrap_or_default()) / 1_000_000_000;
    lines.put("redis_version", REDIS_VERSION);
    lines.put("sietch_version", env!("CARGO_PKG_VERSION"));
    lines.put("redis_git_sha1", "00000000");
    lines.put("redis_git_dirty", 0);
    lines.put("redis_mode", "standalone");
    lines.put("os", std::env::consts::OS);
    lines.put("arch_bits", usize::BITS);
    lines.put("multiplexing_api", "sietch");
    lines.put("process_id", std::process::id());
    lines.put("run_id", &context.coordinator().run_id);
    lines.put("tcp_port", store.settings.port);
    lines.put("shards", store.settings.shards);
    lines.put("server_time_usec", now.unix_ms.saturating_mul(1000));
    lines.put("uptime_in_seconds", uptime);
    lines.put("uptime_in_days", uptime / 86_400);
    lines.put("hz", 10);
    lines.put("configured_hz", 10);
    lines.put("executable", "");
    lines.put("config_file", "");
}

/// Bytes in human-readable form, as Redis shows them.
fn human(bytes: u64) -> String {
    let value = bytes as f64;
    match bytes {
        0..1024 => format!("{bytes}B"),
        1024..0x10_0000 => format!("{:.2}K", value / 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.2}M", value / 1_048_576.0),
        _ => format!("{:.2}G", value / 1_073_741_824.0),
    }
}

fn memory(context: &Context<'_>, store: &Store, lines: &mut Lines<'_>) {
    let used = context.used_memory();
    let peak = context.metrics().peak_memory.max(used);
    lines.put("used_memory", used);
    lines.put("used_memory_human", human(used));
    // Before the first sample, or without /proc, the used memory is a lower bound.
    let resident = context.coordinator().persistence.usage.resident;
    let resident = if resident > 0 { resident } else { used };
    lines.put("used_memory_rss", resident);
    lines.put("used_memory_rss_human", human(resident));
    lines.put("used_memory_peak", peak);
    lines.put("used_memory_peak_human", human(peak));
    lines.put("used_memory_dataset", store.weight().memory);
    lines.put("mem_clients_normal", context.stores().map(|store| store.client_bytes).sum::<usize>());
    lines.put("maxmemory", store.settings.maxmemory);
    lines.put("maxmemory_human", human(store.settings.maxmemory));
    lines.put("maxmemory_policy", store.settings.policy.name());
    // What is resident beside the data is no fragmentation, however few data there are.
    let startup = context.coordinator().persistence.startup.unwrap_or_default();
    lines.put("used_memory_startup", startup);
    let counted = (used + startup).max(1);
    lines.put("mem_fragmentation_ratio", format_args!("{:.2}", resident as f64 / counted as f64));
    lines.put("mem_fragmentation_bytes", resident as i64 - counted as i64);
    lines.put("mem_allocator", "system");
    lines.put("lazyfree_pending_objects", u8::from(store.has_pending_frees()));
}

/// Percentiles of the durations of each command, while `latency-tracking` is on.
fn latencies(context: &Context<'_>, lines: &mut Lines<'_>) {
    for (&(number, subcommand), histogram) in &context.histograms() {
        let name = full_name_of(context.table.commands()[number as usize].spec.name, subcommand);
        let microseconds = |percent| histogram.percentile(percent) as f64 / 1000.0;
        lines.put(
            &format!("latency_percentiles_usec_{name}"),
            format_args!(
                "p50={:.3},p99={:.3},p99.9={:.3}",
                microseconds(50.0),
                microseconds(99.0),
                microseconds(99.9)
            ),
        );
    }
}

/// The status as Redis writes it: "ok" or "err".
fn ok_or_err(failed: bool) -> &'static str {
    if failed { "err" } else { "ok" }
}

/// Whole seconds; -1 for none.
fn seconds(nanoseconds: Option<u64>) -> i64 {
    nanoseconds.map_or(-1, |time| (time / 1_000_000_000) as i64)
}

/// The fields of saves show the compaction of the log as those of rewrites do: tools read them to
/// see when a snapshot was made last.
fn persistence(context: &Context<'_>, store: &Store, lines: &mut Lines<'_>) {
    let kept = store.settings.durability.keeps_log();
    // The coordinator's sums include every shard's bytes.
    let full = store.persistence.full || store.lacks_room();
    let status = &store.persistence;
    let running = status.compacting_since();
    let current = seconds(running.map(|begin| context.data.now().monotonic_ns.saturating_sub(begin)));
    let last = seconds(status.last_compaction_ns);
    lines.put("loading", u8::from(store.replaying));
    lines.put("async_loading", 0);
    lines.put("rdb_changes_since_last_save", status.unsaved_changes());
    lines.put("rdb_bgsave_in_progress", u8::from(running.is_some()));
    lines.put("rdb_last_save_time", store.last_save);
    lines.put("rdb_last_bgsave_status", ok_or_err(status.given_up > 0));
    lines.put("rdb_last_bgsave_time_sec", last);
    lines.put("rdb_current_bgsave_time_sec", current);
    lines.put("rdb_saves", status.compactions);
    lines.put("rdb_last_load_keys_expired", 0);
    lines.put("rdb_last_load_keys_loaded", status.recovery.keys);
    lines.put("aof_enabled", u8::from(kept));
    lines.put("aof_rewrite_in_progress", u8::from(running.is_some()));
    lines.put("aof_rewrite_scheduled", u8::from(store.compaction_requested || status.compaction_wanted));
    lines.put("aof_last_rewrite_time_sec", last);
    lines.put("aof_current_rewrite_time_sec", current);
    lines.put("aof_last_bgrewrite_status", ok_or_err(status.given_up > 0));
    lines.put("aof_rewrites", status.compactions);
    lines.put("aof_rewrites_consecutive_failures", status.given_up);
    lines.put("aof_last_write_status", ok_or_err(status.failed || full));
    if kept {
        lines.put("aof_current_size", status.used_bytes);
        lines.put("aof_base_size", status.base_bytes);
        lines.put("aof_pending_rewrite", u8::from(status.compaction_wanted));
        lines.put("aof_buffer_length", status.queued_bytes);
        lines.put("aof_delayed_fsync", status.log.busy);
    }
    lines.put("durability", store.settings.durability.name());
    lines.put("keys_outlive_process", u8::from(kept));
    let metrics = context.metrics();
    lines.put("journal_effects", metrics.effects);
    lines.put("snapshots", metrics.snapshots);
    lines.put("replay_effects", metrics.replayed);
    lines.put("replay_skipped", metrics.replay_skipped);
    if !kept {
        return;
    }
    lines.put("log_last_sequence", status.last_sequence);
    lines.put("log_durable_sequence", status.durable_sequence);
    lines.put("log_capacity", status.capacity_bytes);
    lines.put("log_full", u8::from(full));
    lines.put("log_refused_writes", store.refusals.count());
    lines.put("log_failed", u8::from(status.failed));
    lines.put("log_appends", status.log.appends);
    lines.put("log_appended_bytes", status.log.appended_bytes);
    lines.put("log_writes", status.log.writes);
    lines.put("log_written_bytes", status.log.written_bytes);
    lines.put("log_flushes", status.log.flushes);
    lines.put("log_snapshots", status.log.snapshots);
    lines.put("log_truncations", status.log.truncations);
    lines.put("log_resizes", status.log.resizes);
    lines.put("log_proofs", status.log.proofs);
    lines.put("log_reads", status.log.reads);
    lines.put("log_reads_done", status.log.reads_done);
    lines.put("log_appends_refused", status.log.full);
    let commits = &status.commits;
    let average = |total_ns: u64, count: u64| total_ns / count.max(1) / 1000;
    lines.put("log_commits_timed", commits.timed);
    lines.put("log_commit_average_usec", average(commits.total_ns, commits.timed));
    lines.put("log_commit_longest_usec", commits.longest_ns / 1000);
    lines.put("log_commit_queue_average_usec", average(commits.queue_ns, commits.timed));
    lines.put("log_commit_device_average_usec", average(commits.device_ns, commits.timed));
    lines.put("log_commit_wakeup_average_usec", average(commits.wake_up_ns, commits.wake_ups));
    lines.put("recovery_keys", status.recovery.keys);
    lines.put("recovery_bytes", status.recovery.bytes);
    lines.put("recovery_records", status.recovery.records + status.recovery.snapshot_records);
    lines.put("recovery_seconds", format_args!("{:.3}", status.recovery.seconds()));
    lines.put("recovery_gigabytes_per_second", format_args!("{:.3}", status.recovery.gigabytes_per_second()));
    lines.put("recovery_after_crash", u8::from(status.recovery.after_crash));
}

fn stats(context: &Context<'_>, store: &Store, lines: &mut Lines<'_>) {
    let metrics = &context.metrics();
    lines.put("total_connections_received", metrics.connections);
    lines.put("total_commands_processed", metrics.commands);
    lines.put("instantaneous_ops_per_sec", 0);
    lines.put("total_net_input_bytes", metrics.input_bytes);
    lines.put("total_net_output_bytes", metrics.output_bytes);
    lines.put("rejected_connections", metrics.refused);
    lines.put("expired_keys", metrics.expired);
    lines.put("evicted_keys", metrics.evicted);
    lines.put("keyspace_hits", metrics.hits);
    lines.put("keyspace_misses", metrics.misses);
    lines.put("pubsub_channels", channel_count(context));
    lines.put("pubsub_patterns", pattern_count(context));
    lines.put("total_error_replies", metrics.errors);
    lines.put("protocol_errors", metrics.protocol_errors);
    lines.put("client_query_buffer_limit_disconnections", metrics.query_limit_closed);
    lines.put("client_output_buffer_limit_disconnections", metrics.output_limit_closed);
    lines.put("http_disconnections", metrics.http_closed);
    lines.put("idle_disconnections", metrics.idle_closed);
    lines.put("longest_iteration_usec", metrics.longest_iteration_ns / 1000);
    lines.put("iterations_over_a_millisecond", metrics.long_iterations);
    lines.put("iterations_over_a_millisecond_by_itself", metrics.own_long_iterations);
    lines.put("iterations_over_a_millisecond_page_faults", metrics.long_iteration_faults);
    let next = store.next_expiry().unwrap_or(NEVER);
    if next != NEVER {
        lines.put("next_expiry_unix_ms", next);
    }
}
