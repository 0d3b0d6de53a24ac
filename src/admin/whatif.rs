//! "What if this one were down": where calls would go then, and where they go now.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Instant;

use super::resolve::{Found, Health, Resolution};
use crate::config::SrvSelection;
use crate::flow::Transport;
use crate::location::{Instance, Located, Standing, Usable, forecast};
use crate::proxy::Policy;

/// Most instances supposed to be down at a time.
pub const MAX_DOWN: usize = 1000;

/// What is supposed to be down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Down {
    Addr(IpAddr),
    Socket(SocketAddr),
    Instance(Instance),
}

impl Down {
    fn covers(self, instance: &Instance) -> bool {
        match self {
            Down::Addr(addr) => instance.addr.ip() == addr,
            Down::Socket(socket) => instance.addr == socket,
            Down::Instance(other) => *instance == other,
        }
    }
}

impl fmt::Display for Down {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Down::Addr(addr) => addr.fmt(f),
            Down::Socket(socket) => socket.fmt(f),
            Down::Instance(instance) => instance.fmt(f),
        }
    }
}

impl FromStr for Down {
    type Err = WhatIfError;

    fn from_str(text: &str) -> Result<Self, WhatIfError> {
        let error = || WhatIfError::Addr(text.chars().take(64).collect());
        if let Some((transport, rest)) = text.split_once(':')
            && let Some(transport) = Transport::ALL.into_iter().find(|t| t.param() == transport)
        {
            let addr = rest.parse().map_err(|_| error())?;
            return Ok(Down::Instance(Instance { transport, addr }));
        }
        let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
        let addr = bare.parse().map(|a: IpAddr| Down::Addr(a.to_canonical()));
        addr.or_else(|_| text.parse().map(Down::Socket)).map_err(|_| error())
    }
}

/// Instances supposed to be down, as `--what-if` and `/api/v1/resolve` take them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WhatIf(Vec<Down>);

/// What is no supposition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WhatIfError {
    /// No address.
    #[error("{0:?} is neither an address, nor ADDR:PORT, nor an instance like udp:192.0.2.7:5060")]
    Addr(String),
    /// Too much at a time.
    #[error("more than {MAX_DOWN} instances at a time")]
    TooMany,
    /// Not `down=…`
    #[error("write down=ADDR[,ADDR…]")]
    Form,
}

impl WhatIf {
    /// From `ADDR[,ADDR…]`.
    ///
    /// # Errors
    /// One of them is no address, or there are too many.
    pub fn down(list: &str) -> Result<Self, WhatIfError> {
        let mut all = Vec::new();
        for item in list.split(',') {
            if all.len() >= MAX_DOWN {
                return Err(WhatIfError::TooMany);
            }
            all.push(item.trim().parse()?);
        }
        Ok(Self(all))
    }

    /// True if this instance is supposed to be down.
    pub fn is_down(&self, instance: &Instance) -> bool {
        self.0.iter().any(|down| down.covers(instance))
    }

    /// What was named and is no candidate of this result: probably a slip.
    fn unmatched(&self, resolution: &Resolution) -> Vec<String> {
        let instances: Vec<Instance> = resolution
            .legs
            .iter()
            .flat_map(|leg| &leg.found.candidates)
            .filter_map(|c| match c.instance.parse() {
                Ok(Down::Instance(instance)) => Some(instance),
                _ => None,
            })
            .collect();
        let missing = self.0.iter().filter(|down| !instances.iter().any(|i| down.covers(i)));
        missing.map(ToString::to_string).collect()
    }
}

impl FromStr for WhatIf {
    type Err = WhatIfError;

    /// As the command line has it: `down=ADDR[,ADDR…]`.
    fn from_str(text: &str) -> Result<Self, WhatIfError> {
        Self::down(text.strip_prefix("down=").ok_or(WhatIfError::Form)?)
    }
}

/// Puts share and order of the first tries to the candidates of one party. `own`: what is a listener of this element.
pub fn foresee(
    found: &mut Found,
    located: &Located,
    now: Instant,
    mode: SrvSelection,
    health: Health<'_>,
    own: &dyn Fn(&Instance) -> bool,
    what_if: &WhatIf,
) {
    let usable = |instance: &Instance| {
        let standing = health.and_then(|h| h.get(instance)).copied().unwrap_or(Standing::Up);
        match standing {
            _ if own(instance) => Usable::Never,
            _ if what_if.is_down(instance) => Usable::AsLastResort,
            Standing::Up => Usable::Yes,
            // One call tries what is half-open; all others pass it over.
            Standing::Trial | Standing::Down { .. } | Standing::ProbedDown => Usable::AsLastResort,
        }
    };
    let foretold = forecast(located, mode, now, &usable);
    for shown in &mut found.candidates {
        let Some(p) = foretold.prospects.iter().find(|p| (p.tier, p.server, p.address) == shown.at) else {
            continue;
        };
        shown.first = Some((p.first * 10_000.0).round() / 10_000.0);
        shown.order = Some(p.order);
        let server = located.tiers.get(p.tier).and_then(|t| t.servers.get(p.server));
        if server.and_then(|s| s.instance(p.address)).is_some_and(|i| what_if.is_down(&i)) {
            shown.health = "down";
            shown.down_for = None;
            shown.supposed_down = true;
        }
    }
}

/// Joins what was foreseen of each party: a later one is only tried after all of those before it, and no more
/// candidates are tried than the configuration allows.
pub fn join(resolution: &mut Resolution, policy: Option<&Policy>, what_if: &WhatIf) {
    let most = policy.map_or(usize::MAX, |p| usize::try_from(p.config.sip.max_tries).unwrap_or(usize::MAX));
    let mut before = 0;
    for leg in &mut resolution.legs {
        let mut tried = 0;
        for shown in &mut leg.found.candidates {
            let Some(order) = shown.order else { continue };
            tried = tried.max(order + 1);
            let order = before + order;
            shown.order = (order < most).then_some(order + 1);
            if before > 0 {
                shown.first = Some(0.0);
            }
        }
        before += tried;
    }
    if policy.is_some_and(|p| p.config.dns.srv_selection == SrvSelection::Rfc2782)
        && resolution.candidates > 0
    {
        let note = "srv_selection is \"rfc2782\": the shares of first tries are estimates, from 20000 draws";
        resolution.notes.push(note.to_owned());
    }
    for what in what_if.unmatched(resolution) {
        resolution.notes.push(format!("{what} is supposed to be down, and is none of the candidates"));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn instance(transport: Transport, addr: &str) -> Instance {
        Instance { transport, addr: addr.parse().unwrap() }
    }

    #[test]
    fn an_address_means_all_of_its_instances_and_an_instance_itself() {
        let udp = instance(Transport::Udp, "192.0.2.1:5060");
        let tls = instance(Transport::Tls, "192.0.2.1:5061");
        let six = instance(Transport::Tcp, "[2001:db8::1]:5060");
        for (text, want) in [
            ("down=192.0.2.1", [true, true, false]),
            ("down=192.0.2.1:5060", [true, false, false]),
            ("down=tls:192.0.2.1:5061", [false, true, false]),
            ("down=tcp:192.0.2.1:5060", [false, false, false]),
            ("down=2001:db8::1", [false, false, true]),
            ("down=[2001:db8::1]", [false, false, true]),
            ("down=[2001:db8::1]:5060", [false, false, true]),
            ("down=tcp:[2001:db8::1]:5060, 192.0.2.1:5061", [false, true, true]),
        ] {
            let what_if: WhatIf = text.parse().unwrap();
            assert_eq!([udp, tls, six].map(|i| what_if.is_down(&i)), want, "{text}");
        }
    }

    #[test]
    fn whatever_else_is_refused() {
        for text in [
            "",
            "down=",
            "down=a.test",
            "up=192.0.2.1",
            "down=192.0.2.1,",
            "down=sctp:192.0.2.1:5060",
            "down=udp:192.0.2.1",
        ] {
            assert!(text.parse::<WhatIf>().is_err(), "{text}");
        }
        let many = vec!["192.0.2.1"; MAX_DOWN + 1].join(",");
        assert_eq!(WhatIf::down(&many), Err(WhatIfError::TooMany));
    }
}
