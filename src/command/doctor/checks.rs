//! What is made of the evidence: each check is a function from what was found to a finding. Pure.

use std::time::Duration;

use super::finding::{Check, Finding, Group};
use super::host::Host;
use crate::lock::doctor::{
    ClockOffset, Evidence, Info, NamedLock, Probe, SentinelAnswer, SentinelEvidence, Transport,
    Trial, Unknown, Validity, Verdict, best_clock,
};
use crate::lock::{Error, ErrorKind, Key};
use crate::report::{busy_line, command_line, format_duration, held_back};

/// What the findings are judged by.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    /// The lease of the locks.
    pub ttl: Duration,
    /// Now, in seconds since 1970.
    pub now: i64,
}

impl Measure {
    /// A run renews its lease this often.
    fn renewal(self) -> Duration {
        self.ttl / 3
    }
}

/// All findings, in the order in which they are shown.
pub fn all(evidence: &Evidence, host: &Host, measure: Measure) -> Vec<Finding> {
    let mut findings = vec![connection(evidence), tls(evidence, measure)];
    findings.extend(client_certificate(evidence, measure));
    if let Some(found) = &evidence.sentinels {
        findings.extend([sentinels(evidence, found), failover(found, measure)]);
    }
    findings.extend([
        latency(evidence, measure),
        timeouts(evidence, measure),
        clocks(evidence, measure),
        server(evidence),
        role(evidence),
        replicas(evidence),
        sync(evidence),
        cluster(evidence),
        eviction(evidence),
        clients(evidence),
        writes(evidence),
        persistence(evidence, measure),
        uptime(evidence, measure),
        commands(evidence),
        permissions(evidence),
        scripts(evidence),
        messages(evidence),
        tracking(evidence, measure),
    ]);
    findings.extend(name(evidence));
    findings.extend(this_host(host));
    findings
}

/// A command for the server, as it is typed.
fn redis_cli(evidence: &Evidence, words: &[&str]) -> String {
    let words = words.iter().map(|&word| word.to_owned());
    let all: Vec<String> = evidence.redis_cli.iter().cloned().chain(words).collect();
    command_line(&all)
}

/// A message of an error in two parts: what is so, and what to do. Which server it is stands above.
fn in_parts(evidence: &Evidence, error: &Error) -> (String, Option<String>) {
    let message = error.to_string();
    let whose = format!("Redis at {} ", evidence.place);
    let message = message.strip_prefix(&whose).unwrap_or(&message);
    let message = message.strip_prefix("is not ready: ").unwrap_or(message);
    match message.split_once("; ") {
        Some((says, fix)) => (says.to_owned(), Some(fix.to_owned())),
        None => (message.to_owned(), None),
    }
}

/// A time as short as a table has it: `0.02 ms`, `0.3 ms`, `12 ms`, `1.4 s`.
pub fn short(duration: Duration) -> String {
    let ms = duration.as_secs_f64() * 1000.0;
    match ms {
        ..0.1 => format!("{ms:.2} ms"),
        ..10.0 => format!("{ms:.1} ms"),
        ..1000.0 => format!("{ms:.0} ms"),
        _ => format!("{:.1} s", ms / 1000.0),
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A size in the unit that fits: `900 bytes`, `1.5 MB`.
fn size(bytes: u64) -> String {
    #[allow(clippy::cast_precision_loss)] // One digit is shown.
    let bytes_f = bytes as f64;
    match bytes {
        0..10_000 => format!("{bytes} bytes"),
        10_000..1_000_000_000 => format!("{:.1} MB", bytes_f / 1e6),
        _ => format!("{:.1} GB", bytes_f / 1e9),
    }
}

/// `1 replica`, `2 replicas`.
pub fn counted(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

const CONNECTION: Check = Check("connection", Group::Way);
const TLS: Check = Check("tls", Group::Way);

/// Whether it was TLS that failed.
fn is_about_tls(evidence: &Evidence, error: &Error) -> bool {
    matches!(evidence.transport, Transport::Tls { .. }) && error.kind == ErrorKind::Config
}

fn connection(evidence: &Evidence) -> Finding {
    match &evidence.connected {
        Ok(took) => {
            let user = evidence.user.as_ref();
            let user = user.map_or(String::new(), |user| format!(" as user \"{user}\""));
            let says = format!("connected{user}, and answered in {}", short(*took));
            CONNECTION.ok(says).with("took_us", micros(*took))
        }
        Err(error) if is_about_tls(evidence, error) => CONNECTION.unknown(&Unknown::NotAsked),
        Err(error) => {
            let (says, fix) = in_parts(evidence, error);
            if evidence.sentinels.is_some() && error.kind == ErrorKind::Unreachable {
                return CONNECTION.fail(
                    says,
                    "start the primary, or wait for the failover; see the sentinels' answers below",
                );
            }
            let ping = redis_cli(evidence, &["PING"]);
            let fix = fix.unwrap_or_else(|| match error.kind {
                ErrorKind::Unreachable if says.contains("refused") => {
                    format!("nothing listens there: start Redis, or correct the URL ({ping})")
                }
                ErrorKind::Unreachable if says.contains("in time") => format!(
                    "a firewall drops what we send, or the server hangs; see whether {ping} answers"
                ),
                _ => format!("see whether {ping} answers"),
            });
            CONNECTION.fail(says, fix)
        }
    }
}

fn tls(evidence: &Evidence, measure: Measure) -> Finding {
    let host = match &evidence.transport {
        Transport::Socket => return TLS.moot("a socket of this host"),
        Transport::Plain { is_loopback: true } => return TLS.moot("not used within this host"),
        Transport::Plain { is_loopback: false } => {
            return TLS.ok("not used: whoever listens on the line reads all (rediss:// encrypts)");
        }
        Transport::Tls { host } => host,
    };
    match (&evidence.connected, evidence.certificate) {
        (Err(error), _) if is_about_tls(evidence, error) => {
            let (says, fix) = in_parts(evidence, error);
            TLS.fail(says, fix.unwrap_or_else(|| "check --tls-ca".into()))
        }
        (_, Some(validity)) => {
            let what = format!("the certificate for {host}");
            let fix = format!("renew the certificate of {host}");
            certificate(TLS, &what, fix, validity, measure)
        }
        (Ok(_), None) => TLS.unknown(&Unknown::Failed("its certificate can't be read".into())),
        (Err(_), None) => TLS.unknown(&Unknown::NotAsked),
    }
}

fn client_certificate(evidence: &Evidence, measure: Measure) -> Option<Finding> {
    let validity = evidence.own_certificate?;
    let check = Check("client-certificate", Group::Way);
    let (what, fix) = ("the one we show (--tls-cert)", "renew it".into());
    Some(certificate(check, what, fix, validity, measure))
}

/// Certificates are renewed this long before they end, at the latest; short ones after five sixths of their
/// time.
const RENEWED_BEFORE: i64 = 14 * 86400;

fn certificate(
    check: Check,
    what: &str,
    fix: String,
    validity: Validity,
    measure: Measure,
) -> Finding {
    let seconds = |seconds: i64| Duration::from_secs(seconds.unsigned_abs());
    let left = validity.until - measure.now;
    let long = validity.until - validity.from;
    let finding = if left <= 0 {
        let ago = format_duration(seconds(left));
        check.fail(format!("{what} has expired, {ago} ago"), fix)
    } else if left < RENEWED_BEFORE.min(long / 6) {
        let left = format_duration(seconds(left));
        check.warn(format!("{what} expires in {left}"), fix)
    } else {
        let left = format_duration(seconds(left));
        check.ok(format!("{what} is valid for {left} more"))
    };
    finding.with("expires_in_s", left)
}

const LATENCY: Check = Check("latency", Group::Way);

/// Renewals should take less than this part of the time between them.
const SLOW: u32 = 10;

fn latency(evidence: &Evidence, measure: Measure) -> Finding {
    let trips = match &evidence.round_trips {
        Ok(trips) => trips,
        Err(why) => return LATENCY.unknown(why),
    };
    let mut times: Vec<Duration> = trips.iter().map(|trip| trip.took).collect();
    times.sort();
    let (Some(&most), many) = (times.last(), times.len()) else {
        return LATENCY.unknown(&Unknown::NoAnswer);
    };
    let at = |percent: usize| times[(many * percent).div_ceil(100).max(1) - 1];
    let (p50, p99) = (at(50), at(99));
    let renewal = measure.renewal();
    let says = format!(
        "p50 {}, p99 {}, max {}; a renewal each {}",
        short(p50),
        short(p99),
        short(most),
        format_duration(renewal)
    );
    let longer = |factor: u32| format_duration(rounded_up(most * factor));
    let finding = if most >= renewal {
        let fix = format!("a TTL with room for it: --ttl {}", longer(3 * SLOW));
        LATENCY.fail(says, fix)
    } else if p99 >= renewal / SLOW {
        let fix = format!("a longer TTL: --ttl {}", longer(3 * SLOW));
        LATENCY.warn(says, fix)
    } else {
        LATENCY.ok(says)
    };
    finding
        .with("p50_us", micros(p50))
        .with("p99_us", micros(p99))
        .with("max_us", micros(most))
        .with("samples", many)
}

fn rounded_up(duration: Duration) -> Duration {
    Duration::from_secs(duration.as_secs() + 1)
}

fn timeouts(evidence: &Evidence, measure: Measure) -> Finding {
    let check = Check("timeouts", Group::Way);
    let (ours, renewal) = (evidence.timeout, measure.renewal());
    let says = format!("--connect-timeout {}", format_duration(ours));
    if ours > renewal {
        let less = format_duration(rounded_down(renewal));
        return check.warn(
            format!(
                "{says} is longer than a third of the TTL: one silent server costs several renewals"
            ),
            format!("--connect-timeout {less}, or a longer TTL"),
        );
    }
    let idle = match evidence.config.get("timeout") {
        Some(Ok(text)) => text.parse().map(Duration::from_secs).unwrap_or_default(),
        _ => return check.ok(says),
    };
    if idle > Duration::ZERO && idle <= renewal {
        return check.warn(
            format!(
                "the server closes connections that are idle for {}: each renewal needs a new one",
                format_duration(idle)
            ),
            redis_cli(evidence, &["CONFIG", "SET", "timeout", "0"]),
        );
    }
    let idle = match idle {
        Duration::ZERO => "the server keeps idle connections".to_owned(),
        idle => format!("idle connections are kept for {}", format_duration(idle)),
    };
    check.ok(format!("{says}; {idle}"))
}

fn rounded_down(duration: Duration) -> Duration {
    match duration.as_secs() {
        0 => Duration::from_millis(u64::from(duration.subsec_millis()) / 100 * 100),
        seconds => Duration::from_secs(seconds),
    }
}

/// Clocks of servers may differ by this much, which is what synchronised ones stay far below.
const APART: Duration = Duration::from_millis(500);

/// Clocks are not said to be closer to each other than this.
const LEAST_APART: Duration = Duration::from_millis(1);

/// Nothing depends on how far our own clock is off; but people compare times.
const OWN_APART: Duration = Duration::from_secs(10);

fn clocks(evidence: &Evidence, measure: Measure) -> Finding {
    let check = Check("clocks", Group::Way);
    let trips = match &evidence.round_trips {
        Ok(trips) => trips,
        Err(why) => return check.unknown(why),
    };
    let Some(server) = best_clock(trips) else {
        return check.unknown(&Unknown::Denied("TIME"));
    };
    let mut says = if server.ahead_us.unsigned_abs() <= server.error_us {
        "the server's agrees with this host's".to_owned()
    } else {
        format!("the server's is {} of this host's", ahead(server))
    };
    let mut most: Option<(Duration, String)> = None;
    let mut silent = Vec::new();
    for replica in evidence.replicas.iter().chain(&evidence.nodes) {
        match &replica.clock {
            Ok(clock) => {
                let apart = apart(*clock, server);
                if most.as_ref().is_none_or(|(most, _)| apart > *most) {
                    most = Some((apart, replica.entry.place()));
                }
            }
            Err(_) => silent.push(replica.entry.place()),
        }
    }
    if let Some((most, _)) = &most {
        says = format!(
            "{says}; the other servers' within {}",
            short((*most).max(LEAST_APART))
        );
    }
    if let Some(first) = silent.first() {
        let others = match silent.len() {
            1 => String::new(),
            many => format!(" and {} more", many - 1),
        };
        says = format!("{says}; not known of {first}{others}");
    }
    let sync = "synchronise the hosts' clocks (chronyc tracking shows the offset)";
    let skewed = |most: Duration| {
        let most = format_duration(rounded_up(most));
        format!("synchronise the hosts' clocks; until then --clock-skew {most}")
    };
    let finding = match most {
        Some((most, place)) if most >= measure.ttl / 2 => check.fail(
            format!(
                "the clock of {place} is {} from the primary's: after a failover leases of {} end too early or too late",
                short(most),
                format_duration(measure.ttl)
            ),
            sync,
        ),
        Some((most, place)) if most >= APART => check.warn(
            format!(
                "the clock of {place} is {} from the primary's: after a failover leases end that much too early",
                short(most)
            ),
            skewed(most),
        ),
        _ if Duration::from_micros(server.ahead_us.unsigned_abs()) >= OWN_APART => check.warn(
            format!("{says}; times in status and history are the server's"),
            sync,
        ),
        _ => check.ok(says),
    };
    finding.with("server_ahead_us", server.ahead_us)
}

/// `12 ms ahead`, `0.3 ms behind`.
fn ahead(clock: ClockOffset) -> String {
    let by = short(Duration::from_micros(clock.ahead_us.unsigned_abs()));
    let where_ = if clock.ahead_us < 0 {
        "behind"
    } else {
        "ahead"
    };
    format!("{by} {where_}")
}

/// How far two clocks are from each other, at least: what the questions took says nothing.
fn apart(one: ClockOffset, other: ClockOffset) -> Duration {
    let apart = one.ahead_us.abs_diff(other.ahead_us);
    Duration::from_micros(apart.saturating_sub(one.error_us + other.error_us))
}

/// The finding of a check that reads INFO.
fn by_info(evidence: &Evidence, check: Check, judge: impl FnOnce(&Info) -> Finding) -> Finding {
    match &evidence.info {
        Ok(info) => judge(info),
        Err(why) => check.unknown(why),
    }
}

fn server(evidence: &Evidence) -> Finding {
    let check = Check("server", Group::Server);
    by_info(evidence, check, |info| {
        let (flavour, version) = flavour(info);
        let mode = info.text("redis_mode").unwrap_or("standalone");
        let os = info.text("os").unwrap_or_default();
        let service = if os.starts_with("Amazon") || os.contains("ElastiCache") {
            format!(" ({os})")
        } else {
            String::new()
        };
        let says = format!("{flavour} {version}{service}, {mode}");
        let finding = if mode == "sentinel" {
            check.fail(
                format!("{says}: it knows where locks are, and holds none"),
                "use the URL of the primary that it knows",
            )
        } else {
            check.ok(says)
        };
        finding
            .with("flavour", flavour)
            .with("version", version)
            .with("mode", mode)
    })
}

/// What it is, and its version.
fn flavour(info: &Info) -> (&'static str, &str) {
    for (field, name) in [
        ("valkey_version", "Valkey"),
        ("dragonfly_version", "Dragonfly"),
        ("garnet_version", "Garnet"),
        ("redict_version", "Redict"),
        ("upstash_version", "Upstash"),
    ] {
        if let Some(version) = info.text(field) {
            return (name, version);
        }
    }
    let version = info.text("redis_version").unwrap_or("of unknown version");
    let program = info.text("executable").unwrap_or_default();
    let is_keydb = program.contains("keydb") || info.text("mvcc_depth").is_some();
    (if is_keydb { "KeyDB" } else { "Redis" }, version)
}

/// Whether it accepts writes beside the server that it copies.
fn is_second_writer(info: &Info) -> bool {
    match info.text("role") {
        Some("active-replica") => true,
        Some("slave") => info.number("slave_read_only") == Some(0),
        _ => info
            .text("active_replica")
            .is_some_and(|it| it == "1" || it == "yes"),
    }
}

fn role(evidence: &Evidence) -> Finding {
    let check = Check("role", Group::Server);
    by_info(evidence, check, |info| {
        let primary = match (info.text("master_host"), info.number("master_port")) {
            (Some(host), Some(port)) => format!("{host}:{port}"),
            _ => "its primary".to_owned(),
        };
        let url = match &evidence.transport {
            Transport::Tls { .. } => format!("--url rediss://{primary}"),
            _ => format!("--url redis://{primary}"),
        };
        let url = if info.text("master_host").is_some() {
            url
        } else {
            "use the URL of its primary".into()
        };
        let role = info.text("role").unwrap_or_default();
        let finding = if is_second_writer(info) {
            check.fail(
                format!(
                    "writable, and a replica of {primary}: each of the two grants the same lock"
                ),
                "one writer only: active-replica no (KeyDB), replica-read-only yes; then its primary's URL",
            )
        } else if role == "slave" {
            let link = info.text("master_link_status").unwrap_or("unknown");
            check.fail(
                format!("a read-only replica of {primary} (link {link})"),
                url,
            )
        } else if role == "master" {
            let many = usize::try_from(info.number("connected_slaves").unwrap_or(0));
            match many.unwrap_or(0) {
                0 => check.ok("primary, without replicas"),
                many => check.ok(format!("primary of {}", counted(many, "replica"))),
            }
        } else {
            return check.unknown(&Unknown::Unsupported("role in INFO"));
        };
        finding.with("role", role)
    })
}

/// A replica that lags by more than this loses locks in a failover that it could have kept.
const BEHIND: u64 = 1_000_000;
const LAST_HEARD: Duration = Duration::from_secs(10);

fn replicas(evidence: &Evidence) -> Finding {
    let check = Check("replicas", Group::Server);
    by_info(evidence, check, |info| {
        let entries = info.replicas();
        if entries.is_empty() {
            return check.moot("none");
        }
        let late = |entry: &&crate::lock::doctor::ReplicaEntry| {
            !entry.is_online
                || entry.behind.is_some_and(|behind| behind > BEHIND)
                || entry.last_heard.is_some_and(|heard| heard > LAST_HEARD)
        };
        if let Some(entry) = entries.iter().find(late) {
            let what = if !entry.is_online {
                "is not in sync yet".to_owned()
            } else if let Some(heard) = entry.last_heard.filter(|heard| *heard > LAST_HEARD) {
                format!("was last heard of {} ago", format_duration(heard))
            } else {
                format!("is {} behind", size(entry.behind.unwrap_or_default()))
            };
            let others = match entries.len() - 1 {
                0 => String::new(),
                others => format!(" (beside {})", counted(others, "other")),
            };
            return check.warn(
                format!(
                    "{} {what}{others}: a failover to it loses locks",
                    entry.place()
                ),
                redis_cli(evidence, &["INFO", "replication"]),
            );
        }
        let priority = |replica: &crate::lock::doctor::Replica| {
            let info = replica.info.as_ref().ok()?;
            info.number("slave_priority")
        };
        let known: Vec<u64> = evidence.replicas.iter().filter_map(priority).collect();
        let priorities = known.iter().map(u64::to_string).collect::<Vec<_>>();
        let priorities = priorities.join(", ");
        if known.len() == entries.len() && known.iter().all(|&priority| priority == 0) {
            return check.warn(
                format!(
                    "{} in sync, but none may be promoted (replica-priority 0)",
                    counted(entries.len(), "replica")
                ),
                "CONFIG SET replica-priority 100, on one that may",
            );
        }
        let behind = entries.iter().filter_map(|entry| entry.behind).max();
        let behind = behind.map_or(String::new(), |most| match most {
            0 => ", none behind".into(),
            most => format!(", at most {} behind", size(most)),
        });
        let priorities = match known.len() {
            0 => String::new(),
            _ => format!("; replica-priority {priorities}"),
        };
        check.ok(format!("{} in sync{behind}{priorities}", entries.len()))
    })
    .with(
        "replicas",
        evidence
            .replicas
            .iter()
            .map(|replica| replica.entry.place())
            .collect::<Vec<_>>(),
    )
}

/// Whether grants and renewals can be replicated before they count.
fn sync(evidence: &Evidence) -> Finding {
    let check = Check("sync", Group::Server);
    by_info(evidence, check, |info| {
        let many = info.number("connected_slaves").unwrap_or(0);
        let replicas = counted(usize::try_from(many).unwrap_or(usize::MAX), "replica");
        match (&evidence.acknowledged, evidence.knows_replicas) {
            (_, false) if many == 0 => check.moot("no replica to wait for"),
            (_, true) if many == 0 => check.warn(
                "no replica: --sync can't be used, and nothing takes over from this server",
                "start a replica (replicaof)",
            ),
            (Err(why), _) => check.unknown(why),
            (Ok(confirmed), _) if *confirmed < many => check.warn(
                format!(
                    "{confirmed} of {replicas} confirm in time what is written: --sync waits for them"
                ),
                redis_cli(evidence, &["INFO", "replication"]),
            ),
            (Ok(_), true) => check.ok(format!("--sync all is possible: {replicas} can confirm")),
            (Ok(_), false) => check.ok(format!(
                "--sync {many} is possible (--sync all with redis-sentinel://)"
            )),
        }
    })
}

/// The answers of sentinels, without those that gave none.
fn answers(found: &SentinelEvidence) -> impl Iterator<Item = (&String, &SentinelAnswer)> {
    let answers = found.answers.iter();
    answers.filter_map(|(place, answer)| answer.as_ref().ok().map(|answer| (place, answer)))
}

fn sentinels(evidence: &Evidence, found: &SentinelEvidence) -> Finding {
    let check = Check("sentinels", Group::Way);
    let (asked, name) = (found.answers.len(), &found.primary);
    let answered = answers(found).count();
    let silent = found
        .answers
        .iter()
        .find_map(|(place, answer)| answer.as_ref().err().map(|why| (place, why)));
    let Some((first, answer)) = answers(found).next() else {
        let why = silent.map_or(String::new(), |(_, why)| why.to_string());
        return match why.split_once("; ") {
            Some((says, fix)) if !why.starts_with("can't reach") => check.fail(says, fix),
            _ => check.fail(
                format!("none of {asked} answers: {why}"),
                "start them, or correct their addresses in the URL",
            ),
        };
    };
    if let Some((other, differs)) = answers(found).find(|(_, it)| it.primary != answer.primary) {
        return check.fail(
            format!(
                "{first} says that {name} is {}, {other} says {}",
                answer.primary, differs.primary
            ),
            "if this lasts longer than a failover, see the sentinels' logs",
        );
    }
    if answer.flags.contains("down") && evidence.connected.is_err() {
        return check.fail(
            format!("they say that {name} at {} is down", answer.primary),
            "start it, or wait for the failover",
        );
    }
    let known = answers(found)
        .map(|(_, it)| it.sentinels)
        .max()
        .unwrap_or(0);
    let quorum = answers(found).map(|(_, it)| it.quorum).max().unwrap_or(0);
    let says = format!("{answered} of {asked} agree on {}", answer.primary);
    let finding = if quorum > known {
        check.fail(
            format!("{says}, but the quorum of {quorum} is more than the {known} there are"),
            format!(
                "{} SENTINEL SET {name} quorum {}",
                sentinel_cli(first),
                known / 2 + 1
            ),
        )
    } else if let Some((place, why)) = silent {
        let why = why.to_string();
        let why = why.strip_prefix("can't reach ").unwrap_or(&why);
        check.warn(
            format!("{says}; {place} gives no answer: {why}"),
            "start it, or take it out of the URL",
        )
    } else if known < 3 {
        check.warn(
            format!("{says}; {known} in all, so one that fails prevents a failover"),
            "run three or more, on hosts of their own",
        )
    } else {
        check.ok(format!("{says}; quorum {quorum} of {known}"))
    };
    finding.with("quorum", quorum).with("known", known)
}

/// What begins a command for a sentinel.
fn sentinel_cli(place: &str) -> String {
    let (host, port) = place.rsplit_once(':').unwrap_or((place, "26379"));
    let host = host.trim_matches(['[', ']']);
    match host {
        "localhost" | "127.0.0.1" => format!("redis-cli -p {port}"),
        host => format!("redis-cli -h {host} -p {port}"),
    }
}

/// What sentinels need to elect one of them and to promote a replica, beside the time after which they take
/// the primary for dead.
const ELECTION: Duration = Duration::from_secs(2);

fn failover(found: &SentinelEvidence, measure: Measure) -> Finding {
    let check = Check("failover", Group::Way);
    let slowest = answers(found).max_by_key(|(_, it)| it.down_after);
    let Some((place, slowest)) = slowest else {
        return check.unknown(&Unknown::NotAsked);
    };
    let down_after = slowest.down_after;
    let (name, ttl) = (&found.primary, measure.ttl);
    let again = 2 * slowest.failover_timeout;
    let says = format!(
        "begins {} after the primary's death, is retried after {}",
        format_duration(down_after),
        format_duration(again)
    );
    // A lease was last renewed up to a third of its time before.
    let left = ttl.saturating_sub(measure.renewal());
    let finding = if down_after + ELECTION > left {
        let shorter = (ttl / 3).min(Duration::from_secs(5)).as_millis();
        check.warn(
            format!("{says}: leases of {} may end before", format_duration(ttl)),
            format!(
                "{} SENTINEL SET {name} down-after-milliseconds {shorter}",
                sentinel_cli(place)
            ),
        )
    } else {
        check.ok(says)
    };
    let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    finding
        .with("down_after_ms", ms(down_after))
        .with("failover_timeout_ms", ms(slowest.failover_timeout))
}

fn cluster(evidence: &Evidence) -> Finding {
    let check = Check("cluster", Group::Server);
    by_info(evidence, check, |info| {
        let prefix = &evidence.prefix;
        let slot = evidence
            .slot
            .map_or(String::new(), |slot| format!(", {slot}"));
        match (info.is_on("cluster_enabled"), evidence.prefix_has_tag) {
            (false, _) => check.moot("not a cluster"),
            (true, true) => check.ok(format!(
                "the prefix {prefix} keeps all keys in one hash slot{slot}"
            )),
            (true, false) => check.fail(
                format!("the prefix {prefix} has no hash tag, so its keys are on several nodes"),
                format!("--prefix {}", command_line(&[tagged(prefix)])),
            ),
        }
    })
}

/// A prefix with a hash tag, as close to the given one as can be.
fn tagged(prefix: &str) -> String {
    let name: String = prefix
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | '.'))
        .collect();
    let name = if name.is_empty() { "redlock" } else { &name };
    format!("{{{name}}}:")
}

/// Of the memory that a server may use, in percent: where it is full it admits no new locks.
const NEARLY_FULL: u64 = 90;

fn eviction(evidence: &Evidence) -> Finding {
    let check = Check("eviction", Group::Server);
    by_info(evidence, check, |info| {
        let Some(policy) = info.text("maxmemory_policy") else {
            return check.unknown(&Unknown::Unsupported("maxmemory_policy in INFO"));
        };
        let most = info.number("maxmemory").unwrap_or(0);
        let used = info.number("used_memory").unwrap_or(0);
        let evicted = info.number("evicted_keys").unwrap_or(0);
        let limit = match most {
            0 => "no maxmemory".to_owned(),
            most => format!("{} of {} used", size(used), size(most)),
        };
        let fix = redis_cli(
            evidence,
            &["CONFIG", "SET", "maxmemory-policy", "noeviction"],
        );
        let finding = if policy == "noeviction" {
            if most > 0 && used.saturating_mul(100) >= most.saturating_mul(NEARLY_FULL) {
                check.warn(
                    format!("noeviction; {limit}: when it is full, no new lock is granted"),
                    "raise maxmemory, or remove keys",
                )
            } else {
                check.ok(format!("noeviction; {limit}"))
            }
        } else if most == 0 {
            check.warn(
                format!("{policy}: evicts locks once there is a maxmemory"),
                fix,
            )
        } else if evicted > 0 {
            check.fail(
                format!("{policy}; {limit}: it has evicted {evicted} keys, and evicts locks"),
                fix,
            )
        } else {
            check.fail(
                format!("{policy}; {limit}: when it is full it evicts locks"),
                fix,
            )
        };
        finding.with("policy", policy).with("evicted_keys", evicted)
    })
}

fn clients(evidence: &Evidence) -> Finding {
    let check = Check("clients", Group::Server);
    by_info(evidence, check, |info| {
        let (Some(now), Some(most)) = (info.number("connected_clients"), info.number("maxclients"))
        else {
            return check.moot("not known");
        };
        let says = format!("{now} of at most {most}");
        if now.saturating_mul(100) >= most.saturating_mul(NEARLY_FULL) {
            check.warn(
                format!("{says}: when it is full, redlock can't connect"),
                "close some, or CONFIG SET maxclients to a larger number",
            )
        } else {
            check.moot(says)
        }
    })
}

/// Whether an error says that the server can't be written to, and not that something is wrong with us.
fn refuses_writes(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::NotNow | ErrorKind::Replica)
}

fn writes(evidence: &Evidence) -> Finding {
    let check = Check("writes", Group::Server);
    match &evidence.scripts {
        Ok(Trial {
            failure: Some((_, error)),
            ..
        }) if refuses_writes(error) => {
            let (says, fix) = in_parts(evidence, error);
            let it = if says.starts_with("is ") { "it " } else { "" };
            let fix = fix.unwrap_or_else(|| "see its log".into());
            check.fail(format!("refused: {it}{says}"), fix)
        }
        Ok(Trial { failure: None, .. }) => check.ok("accepted"),
        Ok(_) => check.unknown(&Unknown::NotAsked),
        Err(why) => check.unknown(why),
    }
}

/// How a server keeps its data.
enum Kept {
    /// Each write, in a log.
    Log,
    Snapshots,
    Nothing,
    Unknown,
}

fn kept(evidence: &Evidence, info: &Info) -> Kept {
    match evidence.config.get("save") {
        _ if info.is_on("aof_enabled") => Kept::Log,
        Some(Ok(save)) if save.is_empty() => Kept::Nothing,
        Some(Ok(_)) => Kept::Snapshots,
        _ if info.number("rdb_saves").is_some_and(|saves| saves > 0) => Kept::Snapshots,
        _ => Kept::Unknown,
    }
}

fn persistence(evidence: &Evidence, measure: Measure) -> Finding {
    let check = Check("persistence", Group::Server);
    by_info(evidence, check, |info| {
        let append = redis_cli(evidence, &["CONFIG", "SET", "appendonly", "yes"]);
        let has_replicas = info.number("connected_slaves").is_some_and(|many| many > 0);
        let supervisor = info.text("process_supervised");
        let supervisor = supervisor.filter(|it| matches!(*it, "systemd" | "upstart"));
        match kept(evidence, info) {
            Kept::Log if info.text("aof_last_write_status") == Some("err") => check.warn(
                "the append-only file can't be written: a restart forgets locks",
                "its log says why; usually the disk is full",
            ),
            Kept::Log => {
                let fsync = match evidence.config.get("appendfsync") {
                    Some(Ok(fsync)) => format!(" (appendfsync {fsync})"),
                    _ => String::new(),
                };
                check.ok(format!("append-only file{fsync}"))
            }
            Kept::Snapshots if info.text("rdb_last_bgsave_status") == Some("err") => check.warn(
                "the last snapshot failed: a restart forgets all locks since the one before",
                "its log says why; usually the disk is full",
            ),
            Kept::Snapshots => {
                let last = info.number("rdb_last_save_time");
                let last = last.and_then(|last| u64::try_from(measure.now).ok()?.checked_sub(last));
                let last = last.map_or(String::new(), |ago| {
                    format!(", {} ago", format_duration(Duration::from_secs(ago)))
                });
                check.warn(
                    format!("snapshots only: a crash forgets locks since the last one{last}"),
                    append,
                )
            }
            Kept::Nothing => match (has_replicas, supervisor) {
                (true, Some(supervisor)) => check.fail(
                    format!(
                        "none, and {supervisor} restarts it: it comes back empty, and its replicas copy that"
                    ),
                    append,
                ),
                (true, None) => check.warn(
                    "none: a primary that is restarted is empty, and its replicas copy that",
                    append,
                ),
                (false, _) => check.warn("none: a restart forgets all locks", append),
            },
            Kept::Unknown => match evidence.config.get("save") {
                Some(Err(why)) => check.unknown(why),
                _ => check.unknown(&Unknown::NotAsked),
            },
        }
    })
}

fn uptime(evidence: &Evidence, measure: Measure) -> Finding {
    let check = Check("uptime", Group::Server);
    by_info(evidence, check, |info| {
        let Some(up) = info.number("uptime_in_seconds").map(Duration::from_secs) else {
            return check.moot("not known");
        };
        let since = format_duration(up);
        let finding = match kept(evidence, info) {
            Kept::Log => check.ok(format!("{since}, with the locks from before")),
            _ if up < measure.ttl => {
                let left = format_duration(rounded_up(measure.ttl.saturating_sub(up)));
                check.warn(
                    format!("restarted {since} ago: it may have forgotten locks that last"),
                    format!(
                        "wait {left}; runs with --restart-grace {} wait by themselves",
                        format_duration(measure.ttl)
                    ),
                )
            }
            _ => check.ok(since),
        };
        finding.with("uptime_s", up.as_secs())
    })
}

/// The rules with this verdict: those that are needed, and those that only help.
fn rules(probes: &[Probe], verdict: Verdict) -> (Vec<String>, Vec<String>) {
    let with = |is_needed: bool| {
        let found = probes.iter().filter(move |probe| {
            probe.verdict == verdict && probe.subject.is_needed() == is_needed
        });
        found.map(|probe| probe.subject.rule()).collect()
    };
    (with(true), with(false))
}

fn commands(evidence: &Evidence) -> Finding {
    let check = Check("commands", Group::Locks);
    let probes = match &evidence.probes {
        Ok(probes) => probes,
        Err(why) => return check.unknown(why),
    };
    let (missing, _) = rules(probes, Verdict::Missing);
    let names: Vec<String> = missing
        .iter()
        .map(|rule| rule.trim_start_matches('+').to_uppercase())
        .collect();
    if names.is_empty() {
        return check.ok("the server has all that redlock uses");
    }
    let is_or_are = if names.len() == 1 { "is" } else { "are" };
    check
        .fail(
            format!(
                "{} {is_or_are} missing: renamed, disabled, or unknown to this server",
                names.join(", ")
            ),
            "remove its rename-command line (redis.conf), or use a server that has it",
        )
        .with("missing", names)
}

fn permissions(evidence: &Evidence) -> Finding {
    let check = Check("permissions", Group::Locks);
    let probes = match &evidence.probes {
        Ok(probes) => probes,
        Err(why) => return check.unknown(why),
    };
    let (needed, helpful) = rules(probes, Verdict::Denied);
    let user = evidence.user.as_deref().unwrap_or("default");
    let add = |rules: &[String]| {
        let words: Vec<&str> = rules.iter().map(String::as_str).collect();
        redis_cli(evidence, &[&["ACL", "SETUSER", user][..], &words].concat())
    };
    if !needed.is_empty() {
        let all = [&needed[..], &helpful].concat();
        return check
            .fail(
                format!("user \"{user}\" lacks {}", needed.join(" ")),
                add(&all),
            )
            .with("missing", all);
    }
    if !helpful.is_empty() {
        return check
            .warn(
                format!(
                    "user \"{user}\" lacks {}, which redlock can do without",
                    helpful.join(" ")
                ),
                add(&helpful),
            )
            .with("missing", helpful);
    }
    check.ok(format!("user \"{user}\" may do all that redlock does"))
}

fn scripts(evidence: &Evidence) -> Finding {
    let check = Check("scripts", Group::Locks);
    let trial = match &evidence.scripts {
        Ok(trial) => trial,
        Err(why) => return check.unknown(why),
    };
    match &trial.failure {
        None => check
            .ok(format!(
                "acquired, waited, handed on, released: {} in {}",
                counted(usize::try_from(trial.done).unwrap_or(0), "call"),
                short(trial.took)
            ))
            .with("calls", trial.done)
            .with("took_us", micros(trial.took)),
        Some((_, error)) if refuses_writes(error) => check.unknown(&Unknown::NotAsked),
        Some((script, error)) => {
            let (says, fix) = in_parts(evidence, error);
            let fix = fix.unwrap_or_else(|| "is this server compatible with Redis?".into());
            check.fail(format!("{script}: {says}"), fix)
        }
    }
}

/// The rules among the probes that would help, as a command to type.
fn rule_for(evidence: &Evidence, wanted: &[&str]) -> Option<String> {
    let probes = evidence.probes.as_ref().ok()?;
    let (_, helpful) = rules(probes, Verdict::Denied);
    let rules: Vec<&str> = helpful
        .iter()
        .map(String::as_str)
        .filter(|rule| wanted.iter().any(|wanted| rule.starts_with(wanted)))
        .collect();
    let user = evidence.user.as_deref().unwrap_or("default");
    let words = [&["ACL", "SETUSER", user][..], &rules].concat();
    (!rules.is_empty()).then(|| redis_cli(evidence, &words))
}

/// What is done where RESP3 isn't spoken.
const RESP3: &str = "Redis 6 or later, without a proxy in between that doesn't speak RESP3";

fn messages(evidence: &Evidence) -> Finding {
    let check = Check("messages", Group::Locks);
    let heard = match &evidence.messages {
        Ok(heard) => heard,
        Err(why) => return check.unknown(why),
    };
    let finding = if heard.was_granted {
        check.ok("a waiter is notified of its turn (RESP3, PUBLISH)")
    } else {
        let why = match &heard.refused {
            Some(said) => format!(": {said}"),
            None if !heard.resp3 => ": no RESP3".into(),
            None if !heard.is_subscribed => ": it can't subscribe".into(),
            None => ": no message arrived".into(),
        };
        let fix = rule_for(evidence, &["+publish", "+subscribe", "+hello", "&"]);
        check.warn(
            format!("waiters poll, four times a second{why}"),
            fix.unwrap_or_else(|| RESP3.into()),
        )
    };
    finding
        .with("resp3", heard.resp3)
        .with("polls", !heard.was_granted)
}

fn tracking(evidence: &Evidence, measure: Measure) -> Finding {
    let check = Check("tracking", Group::Locks);
    let heard = match &evidence.messages {
        Ok(heard) => heard,
        Err(why) => return check.unknown(why),
    };
    if heard.was_invalidated {
        return check.ok("a run learns at once that its lock was taken away");
    }
    let every = format_duration(measure.renewal());
    let fix = rule_for(evidence, &["+client", "+hello"]);
    check.warn(
        format!("a run learns of a lost lock with its next renewal only, every {every}"),
        fix.unwrap_or_else(|| RESP3.into()),
    )
}

fn name(evidence: &Evidence) -> Option<Finding> {
    let check = Check("name", Group::Locks);
    Some(match evidence.named.as_ref()? {
        Ok(named) => named_lock(evidence, check, named),
        Err(why) => check.unknown(why),
    })
}

fn named_lock(evidence: &Evidence, check: Check, named: &NamedLock) -> Finding {
    if let Some(stranger) = named.strangers.first() {
        let key = &stranger.key;
        let more = match named.strangers.len() {
            1 => String::new(),
            many => format!(" (and {} more)", counted(many - 1, "key")),
        };
        let found = type_name(&stranger.found);
        return check.fail(
            format!("key {key} is {found} of another program, not a lock's{more}"),
            format!(
                "another name or --prefix; or {}",
                redis_cli(evidence, &["RENAME", key, &format!("{key}.old")])
            ),
        );
    }
    let Some(found) = &named.found else {
        return check.unknown(&Unknown::Failed("its state can't be read".into()));
    };
    let key = &named.key;
    let lock = &found.name;
    match (&found.key, found.busy()) {
        (Key::NotALock(kind), _) => check.fail(
            format!("key {key} is {} of another program", type_name(kind)),
            "another name or --prefix",
        ),
        (Key::Held(holds), _)
            if holds
                .iter()
                .any(|hold| hold.holder.is_none() && hold.left.is_none()) =>
        {
            check.fail(
                format!("key {key} has no expiry, and isn't redlock's: it never becomes free"),
                format!("redlock release --force {lock} (or redlock run --repair-ttl)"),
            )
        }
        (_, Some(busy)) => {
            let says = busy_line(lock, &busy);
            check.ok(says
                .strip_prefix("lock ")
                .map_or(says.clone(), str::to_owned))
        }
        (_, None) => match &found.frozen {
            Some(frozen) => {
                let left = Duration::from_millis(frozen.until_ms.saturating_sub(found.now_ms));
                check.warn(
                    format!("\"{lock}\" is frozen for {} more", format_duration(left)),
                    format!("redlock thaw {lock}"),
                )
            }
            None => match found.restarted {
                Some(restarted) => {
                    let (left, why) = held_back(restarted, found.now_ms, Duration::ZERO);
                    check.ok(format!("\"{lock}\" is held back for {left} more: {why}"))
                }
                None => check.ok(format!("\"{lock}\" is free")),
            },
        },
    }
}

/// A type of keys in a sentence.
fn type_name(kind: &str) -> String {
    match kind {
        "zset" => "a sorted set".into(),
        "stream" | "set" | "list" | "hash" | "string" => format!("a {kind}"),
        other => format!("a {other}"),
    }
}

fn this_host(host: &Host) -> [Finding; 4] {
    let judge = |check, ok: &str, result: &Result<(), String>, without: &str, fix: &str| {
        let check = Check(check, Group::Host);
        match result {
            Ok(()) => check.ok(ok),
            Err(why) => check.warn(format!("{why}: {without}"), fix),
        }
    };
    let clock = Check("boottime", Group::Host);
    let clock = match &host.boot_clock {
        Ok(Duration::ZERO) => clock.ok("leases are counted while the machine is suspended"),
        Ok(suspended) => clock.ok(format!(
            "leases are counted in suspend, {} since boot",
            format_duration(*suspended)
        )),
        Err(why) => clock.fail(
            format!("{why}: after a suspend, redlock would believe in leases that have ended"),
            "Linux 3.15 or later, without a filter for timerfd_create and CLOCK_BOOTTIME",
        ),
    };
    let filter = "permit it: a filter of system calls (seccomp) is the usual reason";
    [
        clock,
        judge(
            "pdeathsig",
            "the kernel kills a command whose redlock was killed",
            &host.pdeathsig,
            "a command outlives a redlock that was killed",
            filter,
        ),
        judge(
            "pidfd",
            "processes are watched and signalled by descriptor",
            &host.pidfd,
            "whether a dead holder's command is gone isn't known",
            "Linux 5.3 or later, without a filter for pidfd_open",
        ),
        judge(
            "subreaper",
            "what a command leaves behind stays with redlock",
            &host.subreaper,
            "what a command leaves behind may escape",
            filter,
        ),
    ]
}

/// The reasons why checks couldn't be done, each with the checks; and the rule that would permit it.
pub fn not_known(findings: &[Finding]) -> Vec<(Unknown, Vec<&'static str>)> {
    let mut reasons: Vec<(Unknown, Vec<&'static str>)> = Vec::new();
    for finding in findings {
        let Some(why) = &finding.unknown else {
            continue;
        };
        match reasons.iter_mut().find(|(known, _)| known == why) {
            Some((_, checks)) => checks.push(finding.check),
            None => reasons.push((why.clone(), vec![finding.check])),
        }
    }
    reasons
}

/// What would make a check possible.
pub fn permit(evidence: &Evidence, why: &Unknown) -> Option<String> {
    let Unknown::Denied(command) = why else {
        return None;
    };
    let rule = match *command {
        "CONFIG" => "+config|get".to_owned(),
        command => format!("+{}", command.to_lowercase()),
    };
    let user = evidence.user.as_deref().unwrap_or("default");
    Some(redis_cli(evidence, &["ACL", "SETUSER", user, &rule]))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
