//! When a changed order is taken over: not for one answer that says otherwise.
//!
//! | event | what becomes of the order held |
//! |---|---|
//! | first costs of a group | taken over at once |
//! | first cost of one member, or a new member | that member's class is taken over at once |
//! | a fresh answer puts a member into another class than the held one | counted for that member |
//! | … `persist` in a row to the same side, and `hold_down` since the last change | all such members move as far as these agree |
//! | a fresh answer agrees with what is held | the member's count begins anew |
//! | the best member of the leading class is gone, or all of that class are down | taken over at once |
//! | the operator sets another cost | taken over at once |
//! | enough members have a cost for the first time (`min_coverage`) | costs count at once |
//! | from then on too few have one, or enough again | costs count no more, or again, after `persist` in a row and `hold_down` |
//! | no member has a cost any more, or what is missing has run out and nothing fresh has come | costs count no more, at once |
//! | the order is pinned (`sticky = "ttl"`) | what is due waits for the end of the SRV set's life |
//!
//! A round counts once, when all of the group's costs that are fresh have come with a later answer than was counted.
//! The first order is no change: it starts no hold-down.

use std::collections::HashMap;
use std::time::Instant;

use super::classes::{RankPolicy, Scale, close_gaps};
use super::snapshot::{Cost, CostOrigin};
use crate::flow::Transport;

/// What an order is held of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Group {
    /// The targets of one tier; without a priority: of all priorities of one NAPTR record. The last number tells apart
    /// those that are alike in all the rest.
    Targets(Option<(u16, u16)>, Option<Transport>, Option<u16>, usize),
    /// The addresses of one target.
    Addresses(u64),
}

/// A member of a group as the present snapshot shows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// The same in every result.
    pub id: u64,
    /// Its cost, if there is one that counts.
    pub cost: Option<Cost>,
    /// Known to be down.
    pub down: bool,
}

/// What was decided.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Order {
    /// The class of each member, in the order given, without gaps.
    pub classes: Vec<u16>,
    /// Number of classes.
    pub count: u16,
    /// The costs that the classes were made of.
    pub costs: Vec<Option<f64>>,
    /// Enough members have a cost for the order to be used.
    pub covered: bool,
    /// The present costs say otherwise.
    pub held: bool,
    /// When to look again, though nothing new may have come.
    pub again_at: Option<Instant>,
}

/// The orders held of one location.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    groups: HashMap<Group, Held, ahash::RandomState>,
    pass: u64,
}

impl Memory {
    /// Forgets all.
    pub fn clear(&mut self) {
        self.groups.clear();
    }

    /// Begins a pass; groups not asked for until [`Memory::end`] are forgotten.
    pub(super) fn begin(&mut self) {
        self.pass = self.pass.wrapping_add(1);
    }

    /// See [`Memory::begin`].
    pub(super) fn end(&mut self) {
        let pass = self.pass;
        self.groups.retain(|_, held| held.pass == pass);
    }

    /// The order of a group now. `covers`: enough of its members have a cost; one at least. `pin`: the end of the life
    /// of its SRV set.
    #[expect(clippy::too_many_arguments, reason = "the circumstances of one decision")]
    pub(super) fn order(
        &mut self,
        group: Group,
        seen: &[Seen],
        covers: bool,
        scale: &Scale,
        policy: &RankPolicy,
        pin: Option<Instant>,
        now: Instant,
    ) -> Order {
        let held = self.groups.entry(group).or_default();
        held.pass = self.pass;
        held.advance(seen, covers, scale, policy, pin, now)
    }
}

#[derive(Clone, Debug, Default)]
struct Held {
    members: Vec<Member>,
    /// The best member of the leading class when that was last decided.
    leader: Option<u64>,
    /// The last change of the order.
    changed: Option<Instant>,
    /// The latest answer counted.
    counted: u64,
    /// The order stays until then.
    pinned: Option<Instant>,
    coverage: Coverage,
    pass: u64,
}

/// Whether the order is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Coverage {
    /// Not yet.
    #[default]
    Never,
    /// It is; so many rounds in a row had too few costs.
    Used(u32),
    /// It was; so many rounds in a row had enough of them again.
    Lost(u32),
}

impl Coverage {
    const fn is_used(self) -> bool {
        matches!(self, Coverage::Used(_))
    }

    /// One more look, with a round of fresh costs or not: whether `persist` rounds in a row have said otherwise.
    fn count(&mut self, covers: bool, round: bool, persist: u32) -> bool {
        let used = self.is_used();
        let (Coverage::Used(streak) | Coverage::Lost(streak)) = self else { return false };
        *streak = if covers == used { 0 } else { streak.saturating_add(u32::from(round)) };
        *streak >= persist
    }

    /// What it is from now on.
    fn turn(&mut self, covers: bool) {
        *self = match (covers, *self) {
            (true, _) => Coverage::Used(0),
            (false, Coverage::Never) => Coverage::Never,
            (false, _) => Coverage::Lost(0),
        };
    }
}

#[derive(Clone, Copy, Debug)]
struct Member {
    id: u64,
    /// As it was when taken over; only the order of these matters, and there may be gaps.
    class: u16,
    cost: Option<f64>,
    /// The cost that the operator set.
    set: Option<f64>,
    /// Fresh answers in a row that put it elsewhere, all to the same side.
    streak: u32,
    /// Where these put it that moved it least.
    least: u16,
    /// Where the last one put it, and how many in a row did so.
    last: u16,
    same: u32,
}

impl Member {
    /// One more fresh answer, which puts it into another class than the held one.
    fn count(&mut self, class: u16) {
        let onward = self.streak > 0 && (class > self.class) == (self.least > self.class);
        if onward {
            let nearer = class.abs_diff(self.class) < self.least.abs_diff(self.class);
            self.least = if nearer { class } else { self.least };
            self.streak = self.streak.saturating_add(1);
        } else {
            (self.streak, self.least) = (1, class);
        }
        self.same = if onward && class == self.last { self.same.saturating_add(1) } else { 1 };
        self.last = class;
    }

    /// Moves it as far as `persist` answers agree.
    fn follow(&mut self, cost: Option<f64>, persist: u32) {
        self.class = if self.same >= persist { self.last } else { self.least };
        (self.cost, self.streak) = (cost, 0);
    }
}

impl Held {
    fn advance(
        &mut self,
        seen: &[Seen],
        covers: bool,
        scale: &Scale,
        policy: &RankPolicy,
        pin: Option<Instant>,
        now: Instant,
    ) -> Order {
        let costs: Vec<Option<f64>> = seen.iter().map(|s| s.cost.map(|c| c.value)).collect();
        let fresh = scale.classes(&costs);
        // Before an order is used, there is none to hold.
        let first = self.members.is_empty() || self.coverage == Coverage::Never;
        let leader_gone = self.leader.is_some_and(|l| !seen.iter().any(|s| s.id == l));
        let set = |s: &Seen| s.cost.filter(|c| c.origin == CostOrigin::Override).map(|c| c.value);
        let old = std::mem::take(&mut self.members);
        let mut overridden = false;
        let mut before = Vec::with_capacity(seen.len());
        for ((seen, cost), class) in seen.iter().zip(&costs).zip(&fresh) {
            let known = old.iter().find(|m| m.id == seen.id);
            overridden |= known.is_some_and(|m| m.set != set(seen));
            let member = match known {
                Some(m) if m.cost.is_some() || cost.is_none() => {
                    before.push(m.class);
                    Member { set: set(seen), ..*m }
                }
                _ => {
                    before.push(*class);
                    Member {
                        id: seen.id,
                        class: *class,
                        cost: *cost,
                        set: set(seen),
                        streak: 0,
                        least: 0,
                        last: 0,
                        same: 0,
                    }
                }
            };
            self.members.push(member);
        }
        close_gaps(&mut before);
        let lead = self.members.iter().map(|m| m.class).min();
        let leaders_down = self.members.iter().zip(seen).all(|(m, s)| Some(m.class) != lead || s.down)
            && seen.iter().any(|s| !s.down);
        let at_once = first || leader_gone || overridden || leaders_down;
        let round = self.round(seen, now);
        let mut ready = self.coverage.count(covers, round, policy.persist);
        let turns = ready;
        for ((member, cost), class) in self.members.iter_mut().zip(&costs).zip(&fresh) {
            if member.class == *class || at_once {
                (member.class, member.cost, member.streak) = (*class, *cost, 0);
                continue;
            }
            if round {
                member.count(*class);
            }
            ready |= member.streak >= policy.persist;
        }
        let pinned = self.pinned.filter(|until| policy.pinned && now < *until);
        let calm = self.changed.map(|at| at + policy.hold_down).filter(|until| now < *until);
        let wait = pinned.max(calm);
        let used = self.coverage.is_used();
        let run_out = used && seen.iter().filter_map(|s| s.cost).all(|c| c.fresh_until <= now);
        let free = at_once || run_out || self.coverage == Coverage::Never || (turns && wait.is_none());
        if used != covers && free {
            self.coverage.turn(covers);
            if turns {
                self.changed = Some(now);
            }
        }
        if ready && wait.is_none() {
            for (member, cost) in self.members.iter_mut().zip(&costs) {
                if member.streak >= policy.persist {
                    member.follow(*cost, policy.persist);
                }
            }
        }
        let mut classes: Vec<u16> = self.members.iter().map(|m| m.class).collect();
        let count = close_gaps(&mut classes);
        let used = self.coverage.is_used();
        if classes != before && !first && used {
            self.changed = Some(now);
        }
        if first || classes != before || self.leader.is_none() || leader_gone {
            let better = |a: &&Member, b: &&Member| {
                a.class.cmp(&b.class).then(scale.compare(a.cost, b.cost)).then(a.id.cmp(&b.id))
            };
            self.leader = self.members.iter().min_by(better).map(|m| m.id);
        }
        if policy.pinned && pinned.is_none() {
            self.pinned = pin;
        }
        Order {
            held: used != covers || (used && classes != fresh),
            covered: used,
            classes,
            count,
            costs: self.members.iter().map(|m| m.cost).collect(),
            again_at: wait.filter(|_| ready),
        }
    }

    /// Whether the costs shown are of a round that has not been counted; counts it.
    fn round(&mut self, seen: &[Seen], now: Instant) -> bool {
        let fresh = || seen.iter().filter_map(|s| s.cost).filter(|c| now < c.fresh_until).map(|c| c.answer);
        let (Some(oldest), Some(newest)) = (fresh().min(), fresh().max()) else { return false };
        let complete = oldest > self.counted;
        if complete {
            self.counted = newest;
        }
        complete
    }
}
