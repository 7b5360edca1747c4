//! Visits each reachable state once.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use super::promises::Broken;
use super::world::{Step, World};

/// Steps from the start to a state.
pub type Path = Vec<Step>;

/// Result of a search.
pub struct Explored {
    pub states: usize,
    /// Length of the longest path that was followed from the start.
    pub depth: usize,
    /// True if all states within the rules were visited.
    pub is_exhausted: bool,
    /// The broken promise, and the path to it.
    pub broken: Option<(Broken, Path)>,
}

/// Choice of the next state to visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// A state near the start, so that the first path to a broken promise is short.
    BreadthFirst,
    /// The state found last, once the frontier has more than [`FRONTIER`] states: successive states share most of
    /// their data, which saves time and memory.
    DepthFirst,
}

/// Number of pending states above which the search goes into depth.
const FRONTIER: usize = 2_000;

impl Order {
    fn next<T>(self, frontier: &mut VecDeque<T>) -> Option<T> {
        if self == Self::DepthFirst && frontier.len() > FRONTIER {
            frontier.pop_back()
        } else {
            frontier.pop_front()
        }
    }
}

/// Visits at most this many states.
pub fn explore(start: World, most: usize, order: Order) -> Explored {
    let mut seen = HashSet::from([start.digest()]);
    let mut origins = vec![(0, 0)];
    let mut frontier = VecDeque::from([(0_u32, 0_usize, start.clone())]);
    let mut explored = Explored {
        states: 1,
        depth: 0,
        is_exhausted: true,
        broken: None,
    };
    loop {
        let Some((at, depth, world)) = order.next(&mut frontier) else {
            return explored;
        };
        explored.depth = explored.depth.max(depth);
        for (n, (step, next)) in successors(&world).into_iter().enumerate() {
            let next = match next {
                Ok(next) => next,
                Err(broken) => {
                    let mut path = path_to(&origins, at, start);
                    path.push(step);
                    explored.broken = Some((broken, path));
                    return explored;
                }
            };
            if !seen.insert(next.digest()) {
                continue;
            }
            explored.states += 1;
            if explored.states >= most {
                explored.is_exhausted = false;
                return explored;
            }
            let number = u32::try_from(origins.len()).expect("states that fit into memory");
            origins.push((at, u8::try_from(n).expect("few steps")));
            frontier.push_back((number, depth + 1, next));
        }
    }
}

type Successor = (Step, Result<World, Broken>);

/// Returns the possible next states. Leaves out the steps of other clients if those of one client commute with all of them, and
/// start or end no command.
fn successors(world: &World) -> Vec<Successor> {
    let after = |step: Step| -> Successor {
        let mut next = world.clone();
        let kept = next.apply(step);
        (step, kept.map(|()| next))
    };
    if let Some((c, steps)) = world.alone() {
        let had = world.clients[c].has_command;
        // A closed connection doesn't receive messages of others.
        let heard = |world: &World| {
            world.network.links[c]
                .as_ref()
                .map(|link| (link.node, link.listens))
        };
        let next: Vec<Successor> = steps.into_iter().map(after).collect();
        let is_quiet = |(step, next): &Successor| {
            matches!(step, Step::CommandEnds(_))
                || next.as_ref().is_ok_and(|next| {
                    next.clients[c].has_command == had && heard(next) == heard(world)
                })
        };
        if next.iter().all(is_quiet) {
            return next;
        }
    }
    world.steps().into_iter().map(after).collect()
}

/// Visits this many states that differ in anything. Returns how many of them count as equal to another one.
///
/// # Errors
/// Returns the first two states that count as equal, but have different successors.
pub fn check_same(start: &World, most: usize) -> Result<usize, String> {
    let mut seen = HashSet::from([start.exact_digest()]);
    let mut origins = vec![(0, 0)];
    let mut frontier = VecDeque::from([(0_u32, start.clone())]);
    let mut successors_of: HashMap<u128, (u32, BTreeSet<String>)> = HashMap::new();
    let mut same = 0;
    while let Some((at, world)) = Order::DepthFirst.next(&mut frontier) {
        let own = world.digest();
        let mut leads_to = BTreeSet::new();
        for (n, (_, next)) in successors(&world).into_iter().enumerate() {
            leads_to.insert(match &next {
                Ok(next) => format!("{:032x}", next.digest()),
                Err(broken) => format!("{:?}", broken.promise),
            });
            if let Ok(next) = next
                && seen.len() < most
                && seen.insert(next.exact_digest())
            {
                let number = u32::try_from(origins.len()).expect("states that fit into memory");
                origins.push((at, u8::try_from(n).expect("few steps")));
                frontier.push_back((number, next));
            }
        }
        let Some((other, others)) = successors_of.get(&own) else {
            successors_of.insert(own, (at, leads_to));
            continue;
        };
        same += 1;
        if *others != leads_to {
            let path = |at| told(start.clone(), &path_to(&origins, at, start.clone()));
            return Err(format!("{}\n\n{}", path(*other), path(at)));
        }
    }
    Ok(same)
}

/// Returns the steps to the state with this number. `origins` has the predecessor of each state, and its index among the
/// successors of that.
fn path_to(origins: &[(u32, u8)], mut at: u32, mut world: World) -> Path {
    let mut turns = Vec::new();
    while at != 0 {
        let (from, turn) = origins[at as usize];
        turns.push(turn);
        at = from;
    }
    let follow = |turn: u8| {
        let (step, next) = successors(&world).swap_remove(turn.into());
        world = next.expect("it was visited");
        step
    };
    turns.into_iter().rev().map(follow).collect()
}

/// Describes a path for people: the time and text of each step.
pub fn told(mut world: World, path: &[Step]) -> String {
    let mut lines = Vec::new();
    for step in path {
        let at = world.now.as_millis();
        let what = match step {
            Step::Deed(n) => world.rules.deeds[*n].name.to_owned(),
            other => other.to_string(),
        };
        let kept = world.apply(*step);
        lines.push(format!("{at:>7} ms  {what}"));
        if let Err(broken) = kept {
            lines.push(format!("{at:>7} ms  BROKEN {broken}"));
        }
    }
    lines.join("\n")
}
