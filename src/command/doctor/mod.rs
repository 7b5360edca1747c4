//! `redlock doctor`: checks whether this Redis is fit to hold locks,
//! whether this user may use it, and whether this host is ready for runs.
//!
//! `server` sends requests on one connection and judges the replies, and `trips`
//! judges the times they take. `host` checks this host; `page` draws the report.

mod finding;
mod host;
mod info;
mod page;
mod server;
mod trips;

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;

use self::finding::{Level, count, is_fit};
use self::page::ReportPage;
use crate::cli;
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::duration::milliseconds;
use crate::job::identity::own_identity;
use crate::protocol::{Name, Who};
use crate::report::{
    self, THIS_HOST_ONLY, escaped_json, format_duration, has_colors, painted, print,
};
use crate::supervise::hook::HookTest;
use crate::usage::name;
use crate::variables::EVENT;

/// Time for all checks. The rest of two seconds is for the start and the report.
const WITHIN: Duration = Duration::from_millis(1700);

/// Examines the server and this host.
pub fn doctor(options: &cli::Doctor, settings: &Settings) -> Result<Exit> {
    let began = Instant::now();
    let until = began + WITHIN;
    let ttl = options.ttl.unwrap_or(settings.ttl);
    let lock: Option<Name> = options.name.as_deref().map(name).transpose()?;
    let who = Who {
        command: vec!["redlock".into(), "doctor".into()],
        ..own_identity(settings)
    };
    // The hook runs during the examination of the server. A hook
    // that calls doctor must not start itself again and again.
    let is_in_hook = std::env::var_os(EVENT).is_some_and(|event| !event.is_empty());
    let hook = settings.hook.as_deref().filter(|_| !is_in_hook);
    let hook = hook.map(|script| HookTest::start(script, lock.as_slice(), &who));
    let (place, mut findings) = server::examine(settings, ttl, lock.as_ref(), &who, until);
    findings.extend(host::examine(settings, hook, until));
    let is_fit = is_fit(&findings);
    let took = began.elapsed();
    let text = if options.json {
        let json = json!({
            "redis": place,
            "prefix": settings.locks.prefix,
            "name": lock.as_ref().map(Name::as_str),
            "ttl_ms": milliseconds(ttl),
            "fit": is_fit,
            "failures": count(&findings, Level::Fail),
            "warnings": count(&findings, Level::Warn),
            "took_ms": milliseconds(took),
            "checks": findings,
        });
        format!("{}\n", escaped_json(&json.to_string()))
    } else {
        let (prefix, ttl) = (&settings.locks.prefix, format_duration(ttl));
        let mut heading = format!("Redis at {place}, keys {prefix}*, TTL {ttl}");
        if settings.locks.are_local() {
            heading = format!("{THIS_HOST_ONLY}: {heading}");
        }
        let page = ReportPage {
            heading: &heading,
            findings: &findings,
            took,
            width: report::width(),
            verbosity: settings.verbosity,
        };
        painted(&page.lines(), has_colors())
    };
    print(&text)?;
    Ok(if is_fit { Exit::Success } else { Exit::Unfit })
}
