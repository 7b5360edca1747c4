//! `redlock doctor`: whether this Redis is fit to hold locks, whether we may use it, and what to do where it
//! isn't so.
//!
//! `evidence` asks the server, `host` this machine; `checks` judges what was found, `page` draws it for
//! people.

mod checks;
pub(super) mod evidence;
mod finding;
mod fix;
mod host;
mod kernel;
mod page;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use serde::Serialize;

use self::checks::{Measure, Verdict};
use self::finding::{Finding, Level};
use self::host::Host;
use self::page::Page;
use super::identity::own_identity;
use super::usage::name;
use crate::cli;
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::protocol::{Name, Who};
use crate::report::{self, escaped_json, has_colors, print};

/// When all questions end. The rest of the two seconds is for starting and drawing.
const WITHIN: Duration = Duration::from_millis(1700);

/// Everything as one JSON document; the shape is part of the contract.
#[derive(Serialize)]
struct Document<'a> {
    redis: &'a str,
    prefix: &'a str,
    name: Option<&'a str>,
    ttl_ms: u64,
    fit: bool,
    failures: usize,
    warnings: usize,
    took_ms: u64,
    checks: &'a [Finding],
}

/// Examines the server and this host.
pub fn doctor(options: &cli::Doctor, settings: &Settings) -> Result<Exit> {
    let began = Instant::now();
    let asked: Option<Name> = options.name.as_deref().map(name).transpose()?;
    let who = Who {
        command: vec!["redlock".into(), "doctor".into()],
        ..own_identity(settings)
    };
    let host = Host::examine(kernel::examine(), settings);
    let evidence = evidence::examine(&settings.locks, asked.as_ref(), &who, began + WITHIN);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let measure = Measure {
        ttl: options.ttl,
        now: i64::try_from(now.unwrap_or_default().as_secs()).unwrap_or(i64::MAX),
    };
    let findings = checks::all(&evidence, &host, measure);
    let many = |level| findings.iter().filter(|it| it.level == level).count();
    let (failures, warnings) = (many(Level::Fail), many(Level::Warn));
    let is_fit = checks::verdict(&findings) == Verdict::Fit;
    let took = began.elapsed();
    let text = if options.json {
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let document = Document {
            redis: &evidence.place,
            prefix: &evidence.prefix,
            name: asked.as_ref().map(Name::as_str),
            ttl_ms: millis(options.ttl),
            fit: is_fit,
            failures,
            warnings,
            took_ms: millis(took),
            checks: &findings,
        };
        let json = serde_json::to_string(&document)?;
        format!("{}\n", escaped_json(&json))
    } else {
        let page = Page {
            evidence: &evidence,
            findings: &findings,
            ttl: options.ttl,
            took,
            width: report::width(),
            shows_all: settings.verbosity >= report::Verbosity::Verbose,
            is_quiet: settings.verbosity == report::Verbosity::Quiet,
        };
        page.painted(has_colors())
    };
    print(&text)?;
    Ok(if is_fit { Exit::Success } else { Exit::Unfit })
}
