//! A path to a state as a picture: when each command runs, and until when its lease lasts.

use super::explore::Path;
use super::world::{BOOT, World};

/// What one character stands for, in milliseconds.
const SCALE: u128 = 100;

/// A line each run: `#` its command runs under its lease, `!` it runs after that, `·` a lease without a command.
pub fn picture(mut world: World, path: &Path) -> String {
    let runs = world.clients.len();
    let mut lines = vec![String::new(); runs];
    let draw = |world: &World, lines: &mut Vec<String>, until: u128| {
        for (client, line) in world.clients.iter().zip(lines) {
            let ends = client.lease.map(|lease| lease.deadline().since_boot());
            while (line.chars().count() as u128) * SCALE < until {
                let at = line.chars().count() as u128 * SCALE;
                let is_leased = ends.is_some_and(|end| end.saturating_sub(BOOT).as_millis() > at);
                line.push(match (client.has_command, is_leased) {
                    (true, true) => '#',
                    (true, false) => '!',
                    (false, true) => '·',
                    (false, false) => ' ',
                });
            }
        }
    };
    for step in path {
        let mut next = world.clone();
        let _ = next.apply(*step);
        draw(&world, &mut lines, next.now.as_millis());
        world = next;
    }
    // The last moment, as a mark.
    let end = world.now.as_millis() + SCALE;
    draw(&world, &mut lines, end);
    let named = lines.iter().enumerate().map(|(c, line)| {
        let fence = world.clients[c].fence;
        let place = world.facts.place(fence);
        let fence = place.map_or(String::new(), |place| format!("  by grant {}", place + 1));
        format!("    run {c}  {line}{fence}")
    });
    named.collect::<Vec<_>>().join("\n")
}
