//! What happened around a moment, for people: a lane for each process, and below it what was done to whom.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::history::{History, Job, MS, Nanos, ProcessFault, Role, Span};

const COLUMNS: usize = 120;
/// What a busy machine does all the time isn't shown.
const NOTABLE: Nanos = 30 * MS;

struct Picture {
    from: Nanos,
    column: Nanos,
}

impl Picture {
    fn of(span: Span) -> Self {
        let wide = (span.until - span.from).max(20 * MS);
        let from = span.from - wide / 2;
        let column = (wide * 2 / i64::try_from(COLUMNS).unwrap()).max(MS);
        Self { from, column }
    }

    fn until(&self) -> Nanos {
        self.from + self.column * i64::try_from(COLUMNS).unwrap()
    }

    fn span(&self) -> Span {
        Span::new(self.from, self.until())
    }

    fn at(&self, moment: Nanos) -> Option<usize> {
        usize::try_from((moment - self.from) / self.column)
            .ok()
            .filter(|&at| at < COLUMNS && moment >= self.from)
    }

    /// Draws a span into a lane, in as far as it is in the picture.
    fn draw(&self, lane: &mut [char], span: Span, sign: char) {
        if !span.meets(self.span()) {
            return;
        }
        let first = self.at(span.from.max(self.from)).unwrap_or(0);
        let last = self
            .at(span.until.min(self.until() - 1))
            .unwrap_or(COLUMNS - 1);
        for cell in &mut lane[first..=last] {
            *cell = sign;
        }
    }

    fn ms(&self, moment: Nanos) -> i64 {
        (moment - self.from) / MS
    }
}

/// The lanes of all jobs of a lock that were there during a span, and what befell them and the servers.
pub fn timeline(history: &History, name: &str, span: Span, matter: &[u32]) -> String {
    let picture = Picture::of(span);
    let shown = picture.span();
    let mut text = format!(
        "lock {name:?}, {} ms from {} ms after the start; a column is {} ms\n\
         . waits or watches over the command   ~ its line fails   = is stopped   # beats   + a descendant beats\n",
        (picture.until() - picture.from) / MS,
        (picture.from - history.began) / MS,
        picture.column / MS
    );
    for job in &history.jobs {
        let alive = Span::new(job.started, job.ended.unwrap_or(history.ended));
        let is_shown = matter.contains(&job.id)
            || job.names.iter().any(|own| own == name) && alive.meets(shown);
        if is_shown {
            lanes(&picture, job, matter.contains(&job.id), alive, &mut text);
        }
    }
    events(history, name, &picture, &mut text);
    text
}

fn lanes(picture: &Picture, job: &Job, matters: bool, alive: Span, text: &mut String) {
    let mut own = vec![' '; COLUMNS];
    picture.draw(&mut own, alive, '.');
    for hit in job.hits.iter().filter(|hit| hit.role == Role::Line) {
        let span = Span::new(
            hit.span.from.max(alive.from),
            hit.span.until.min(alive.until),
        );
        picture.draw(&mut own, span, '~');
    }
    for hit in job.hits.iter().filter(|hit| hit.role == Role::Supervisor) {
        picture.draw(
            &mut own,
            hit.span,
            if hit.fault == ProcessFault::Stopped {
                '='
            } else {
                'X'
            },
        );
    }
    let sign = if matters { '>' } else { ' ' };
    let own: String = own.into_iter().collect();
    let _ = writeln!(text, "{sign}#{:<5} redlock    |{own}|", job.id);
    for process in &job.processes {
        let mut lane = vec![' '; COLUMNS];
        for period in &process.periods {
            picture.draw(
                &mut lane,
                *period,
                if process.is_descendant { '+' } else { '#' },
            );
        }
        for hit in job.hits.iter().filter(|hit| hit.pid == process.pid) {
            picture.draw(
                &mut lane,
                hit.span,
                if hit.fault == ProcessFault::Stopped {
                    '='
                } else {
                    'X'
                },
            );
        }
        if lane.iter().any(|&cell| cell != ' ') {
            let lane: String = lane.into_iter().collect();
            let _ = writeln!(text, "       {:<10}  |{lane}|", process.pid);
        }
    }
}

fn events(history: &History, name: &str, picture: &Picture, text: &mut String) {
    let mut lines: BTreeSet<(Nanos, String)> = BTreeSet::new();
    let shown = picture.span();
    for fault in history
        .faults
        .iter()
        .filter(|fault| fault.span.meets(shown))
    {
        lines.insert((
            fault.span.from,
            format!("{} (until {})", fault.what, picture.ms(fault.span.until)),
        ));
    }
    for span in history.troubled.iter().filter(|span| span.meets(shown)) {
        lines.insert((
            span.from,
            format!(
                "the servers aren't all well (until {})",
                picture.ms(span.until)
            ),
        ));
    }
    let starved = history
        .starved
        .iter()
        .filter(|span| span.until - span.from > NOTABLE);
    for span in starved.filter(|span| span.meets(shown)) {
        lines.insert((
            span.from,
            format!("no processor for {} ms", (span.until - span.from) / MS),
        ));
    }
    for command in history
        .commands
        .iter()
        .filter(|command| command.name == name && command.span.meets(shown))
    {
        lines.insert((
            command.span.from,
            format!(
                "{:?} (until {}, status {:?})",
                command.what,
                picture.ms(command.span.until),
                command.status
            ),
        ));
    }
    for job in history
        .jobs
        .iter()
        .filter(|job| job.names.iter().any(|own| own == name))
    {
        job_events(job, shown, picture, &mut lines);
    }
    for (moment, line) in lines {
        let _ = writeln!(text, "{:>8} ms  {line}", picture.ms(moment));
    }
}

fn job_events(job: &Job, shown: Span, picture: &Picture, lines: &mut BTreeSet<(Nanos, String)>) {
    let id = job.id;
    let alive = Span::new(job.started, job.ended.unwrap_or(Nanos::MAX));
    if alive.meets(shown) {
        lines.insert((job.started, format!("#{id} {:?}: {}", job.kind, job.words)));
    }
    if let Some(ended) = job
        .ended
        .filter(|&ended| Span::new(ended, ended).meets(shown))
    {
        lines.insert((
            ended,
            format!("#{id} ends with {:?}: {}", job.status, job.said.trim()),
        ));
    }
    for process in &job.processes {
        let (Some(first), Some(last)) = (process.periods.first(), process.periods.last()) else {
            continue;
        };
        for (moment, what) in [(first.from, "beats first"), (last.until, "beats last")] {
            if Span::new(moment, moment).meets(shown) {
                lines.insert((
                    moment,
                    format!("#{id} {} {what}, fences {:?}", process.pid, process.fences),
                ));
            }
        }
    }
    for hit in job.hits.iter().filter(|hit| hit.span.meets(shown)) {
        let what = format!(
            "#{id} {} ({:?}) is {:?} until {} ({})",
            hit.pid,
            hit.role,
            hit.fault,
            picture.ms(hit.span.until),
            hit.aim
        );
        lines.insert((hit.span.from, what));
    }
    for task in job.tasks.iter().filter(|task| task.span.meets(shown)) {
        lines.insert((
            task.span.from,
            format!(
                "#{id} {}: status {} (until {})",
                task.label,
                task.status,
                picture.ms(task.span.until)
            ),
        ));
    }
}
