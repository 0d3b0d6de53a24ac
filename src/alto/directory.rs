//! Information resource directories (RFC 7285 §9): reading, delegation, and which resource serves.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::Deserialize;
use serde_json::value::RawValue;
use url::Url;

use crate::location::CostMode;

use super::cost_type::{CostType, Raw};
use super::error::{Fault, short};
use super::redirect::{self, Policy};
use super::settings::Service;
use super::{json, media};

/// Deepest delegation followed; the configured directory is at 0.
pub const MAX_DEPTH: usize = 4;
/// Most directories of one server.
pub const MAX_DIRECTORIES: usize = 32;
/// Most resources of one server.
pub const MAX_RESOURCES: usize = 4096;
/// Most types of costs, and most other resources, that count of one resource.
const MAX_NAMES: usize = 64;
/// Most remarks kept.
const MAX_NOTES: usize = 16;

/// One resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Where.
    pub url: Url,
    /// What it gives, as far as the directory knows.
    pub media_type: String,
    /// What it takes: with it the method is POST, without it GET (RFC 7285 §8.3.2).
    pub accepts: Option<String>,
    /// The types of costs that it gives, those with an unknown mode left out.
    pub cost_types: Vec<CostType>,
    /// What it depends on.
    pub uses: Vec<String>,
}

/// One directory as read.
#[derive(Clone, Debug, Default)]
pub struct Document {
    /// By id.
    pub resources: BTreeMap<String, Resource>,
    /// Further directories.
    pub delegated: Vec<Url>,
    /// `default-alto-network-map`
    pub default_map: Option<String>,
    /// Entries that were left out, and why.
    pub notes: Vec<String>,
}

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(default)]
    meta: Meta,
    #[serde(borrow)]
    resources: BTreeMap<String, &'a RawValue>,
}

#[derive(Default, Deserialize)]
struct Meta {
    #[serde(rename = "cost-types", default)]
    cost_types: BTreeMap<String, serde_json::Value>,
    #[serde(rename = "default-alto-network-map")]
    default_map: Option<String>,
}

#[derive(Deserialize)]
struct Entry {
    uri: String,
    #[serde(rename = "media-type")]
    media_type: String,
    accepts: Option<String>,
    #[serde(default)]
    capabilities: Capabilities,
    #[serde(default)]
    uses: Vec<String>,
}

#[derive(Default, Deserialize)]
struct Capabilities {
    #[serde(rename = "cost-type-names", default)]
    cost_type_names: Vec<String>,
}

impl Document {
    /// Reads a directory that came from `base`. An entry that is not sound is left out, with a note; the rest serves.
    ///
    /// # Errors
    /// It is no directory.
    pub fn parse(body: &[u8], base: &Url, policy: &Policy) -> Result<Self, Fault> {
        let body: Body<'_> = json::parse(body)?;
        let types: BTreeMap<String, CostType> = body
            .meta
            .cost_types
            .into_iter()
            .filter_map(|(name, raw)| {
                let raw: Raw = serde_json::from_value(raw).ok()?;
                Some((name, CostType::of(raw)?))
            })
            .collect();
        let default_map = body.meta.default_map.filter(|id| json::is_id(id));
        let mut found = Self { default_map, ..Self::default() };
        for (id, raw) in body.resources {
            match resource(&id, raw, base, policy, &types) {
                Ok(resource) if resource.media_type == media::DIRECTORY => {
                    if found.delegated.len() < MAX_DIRECTORIES {
                        found.delegated.push(resource.url);
                    } else {
                        note(&mut found.notes, format!("directories beyond {MAX_DIRECTORIES} are left out"));
                    }
                }
                Ok(resource) if found.resources.len() < MAX_RESOURCES => {
                    found.resources.insert(id, resource);
                }
                Ok(_) => note(&mut found.notes, format!("resources beyond {MAX_RESOURCES} are left out")),
                Err(why) => note(&mut found.notes, format!("resource {} is left out: {why}", short(&id))),
            }
        }
        Ok(found)
    }
}

fn note(notes: &mut Vec<String>, text: String) {
    if notes.len() < MAX_NOTES {
        notes.push(short(&text));
    }
}

fn resource(
    id: &str,
    raw: &RawValue,
    base: &Url,
    policy: &Policy,
    types: &BTreeMap<String, CostType>,
) -> Result<Resource, String> {
    if !json::is_id(id) {
        return Err("its id breaks RFC 7285 section 10.2".into());
    }
    let entry: Entry = serde_json::from_str(raw.get()).map_err(|e| e.to_string())?;
    let mut url = base.join(&entry.uri).map_err(|e| format!("{:?}: {e}", short(&entry.uri)))?;
    url.set_fragment(None);
    policy.check(base, &url).map_err(|why| format!("it leads {why}"))?;
    let mut cost_types: Vec<CostType> = Vec::new();
    for found in entry.capabilities.cost_type_names.iter().filter_map(|name| types.get(name)) {
        if cost_types.len() < MAX_NAMES && !cost_types.contains(found) {
            cost_types.push(found.clone());
        }
    }
    Ok(Resource {
        url,
        media_type: short(&media::essence(&entry.media_type)),
        accepts: entry.accepts.as_deref().map(|kind| short(&media::essence(kind))),
        cost_types,
        uses: entry.uses.into_iter().filter(|id| json::is_id(id)).take(MAX_NAMES).collect(),
    })
}

/// A server's directories being fetched, one after the other.
#[derive(Clone, Debug)]
pub struct Walk {
    queue: VecDeque<(Url, usize)>,
    visited: BTreeSet<Url>,
    closure: Closure,
}

/// All resources that a server's directories lead to. Ids hold across them: a delegated directory may use what
/// its parent names (RFC 7285 §9.2.4).
#[derive(Clone, Debug, Default)]
pub struct Closure {
    /// By id; of two with one id, the one found first.
    pub resources: BTreeMap<String, Resource>,
    /// `default-alto-network-map` of the first directory that has one.
    pub default_map: Option<String>,
    /// Number of directories.
    pub directories: usize,
    /// What was left out, and why.
    pub notes: Vec<String>,
}

impl Walk {
    /// From a first directory on.
    pub fn new(root: Url) -> Self {
        let visited = BTreeSet::from([root.clone()]);
        Self { queue: VecDeque::from([(root, 0)]), visited, closure: Closure::default() }
    }

    /// The directory to fetch now; the same until it is settled.
    pub fn next(&self) -> Option<&Url> {
        self.queue.front().map(|(url, _)| url)
    }

    /// The first one is being fetched.
    pub fn at_root(&self) -> bool {
        self.closure.directories == 0
    }

    /// The directory asked for has come, by redirects from `url`.
    pub fn arrived(&mut self, url: &Url, document: Document) {
        let Some((_, depth)) = self.queue.pop_front() else { return };
        self.visited.insert(url.clone());
        let closure = &mut self.closure;
        closure.directories += 1;
        if closure.default_map.is_none() {
            closure.default_map = document.default_map;
        }
        for text in document.notes {
            note(&mut closure.notes, text);
        }
        for (id, resource) in document.resources {
            if closure.resources.len() < MAX_RESOURCES {
                closure.resources.entry(id).or_insert(resource);
            }
        }
        for url in document.delegated {
            if self.visited.contains(&url) {
                continue;
            }
            if depth + 1 > MAX_DEPTH {
                let text =
                    format!("directory {} is left out: more than {MAX_DEPTH} deep", redirect::show(&url));
                note(&mut closure.notes, text);
            } else if self.visited.len() >= MAX_DIRECTORIES {
                let text =
                    format!("directory {} is left out: more than {MAX_DIRECTORIES}", redirect::show(&url));
                note(&mut closure.notes, text);
            } else {
                self.visited.insert(url.clone());
                self.queue.push_back((url, depth + 1));
            }
        }
    }

    /// The directory asked for cannot be had: the others serve without it.
    pub fn failed(&mut self, why: &Fault) {
        if let Some((url, _)) = self.queue.pop_front() {
            note(&mut self.closure.notes, format!("directory {} is left out: {why}", redirect::show(&url)));
        }
    }

    /// What has been found, once there is no further one to fetch.
    pub fn finish(self) -> Closure {
        self.closure
    }
}

/// What is looked for in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// `metric` and `mode`
    pub cost_type: CostType,
    /// `service`
    pub service: Service,
    /// `resource`
    pub resource: Option<String>,
}

/// Which resources are asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// The endpoint cost service.
    Endpoint {
        /// Its id.
        id: String,
        /// Where.
        url: Url,
        /// Costs of this type.
        cost_type: CostType,
    },
    /// A network map and a cost map.
    Maps {
        /// Id of the network map.
        network_id: String,
        /// Where.
        network: Url,
        /// Id of the cost map.
        cost_id: String,
        /// Where.
        costs: Url,
        /// The cost map is asked for the PIDs needed only.
        filtered: bool,
        /// Costs of this type.
        cost_type: CostType,
    },
}

impl Plan {
    /// The resource that gives costs.
    pub fn id(&self) -> &str {
        match self {
            Plan::Endpoint { id, .. } => id,
            Plan::Maps { cost_id, .. } => cost_id,
        }
    }

    /// The same resources by their ids, wherever they are.
    pub fn same_resources(&self, other: &Plan) -> bool {
        let network = |plan: &Plan| match plan {
            Plan::Endpoint { .. } => None,
            Plan::Maps { network_id, .. } => Some(network_id.clone()),
        };
        self.id() == other.id()
            && self.service() == other.service()
            && self.cost_type() == other.cost_type()
            && network(self) == network(other)
    }

    /// The type of the costs.
    pub const fn cost_type(&self) -> &CostType {
        match self {
            Plan::Endpoint { cost_type, .. } | Plan::Maps { cost_type, .. } => cost_type,
        }
    }

    /// A fixed word.
    pub const fn service(&self) -> &'static str {
        match self {
            Plan::Endpoint { .. } => "endpoint_cost",
            Plan::Maps { filtered: false, .. } => "maps",
            Plan::Maps { filtered: true, .. } => "filtered_maps",
        }
    }
}

/// A kind of resource that gives costs, in the order of preference.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Endpoint,
    Filtered,
    Whole,
}

fn kind(resource: &Resource) -> Option<Kind> {
    match (resource.media_type.as_str(), resource.accepts.as_deref()) {
        (media::ENDPOINT_COST, Some(media::ENDPOINT_COST_PARAMS)) => Some(Kind::Endpoint),
        (media::COST_MAP, Some(media::COST_MAP_FILTER)) => Some(Kind::Filtered),
        (media::COST_MAP, None) => Some(Kind::Whole),
        _ => None,
    }
}

/// Chooses. The configured mode goes before the other one, and numbers may be replaced by ranks but not ranks by
/// numbers; then kinds by preference; then the id, so that the choice is the same every time. With
/// `service = "maps"` a whole cost map goes before a filtered one, as asking for it tells the server nothing.
///
/// # Errors
/// Nothing serves; in words.
pub fn choose(closure: &Closure, wish: &Wish, refused: &[(String, CostType)]) -> Result<Plan, Fault> {
    let kinds: &[Kind] = match wish.service {
        Service::Auto => &[Kind::Endpoint, Kind::Filtered, Kind::Whole],
        Service::Endpoint => &[Kind::Endpoint],
        Service::Maps => &[Kind::Whole, Kind::Filtered],
    };
    let mut types = vec![wish.cost_type.clone()];
    if wish.cost_type.mode == CostMode::Numerical {
        types.push(CostType { mode: CostMode::Ordinal, ..wish.cost_type.clone() });
    }
    let named = wish.resource.as_deref();
    if let Some(id) = named
        && !closure.resources.contains_key(id)
    {
        return Err(Fault::NoResource(format!("the directory has no resource {id:?}")));
    }
    for cost_type in &types {
        for wanted in kinds {
            for (id, resource) in &closure.resources {
                if kind(resource) != Some(*wanted) || named.is_some_and(|n| n != id) {
                    continue;
                }
                // Some servers do not say; whoever names such a resource is believed to know.
                let gives = resource.cost_types.contains(cost_type)
                    || (named.is_some() && resource.cost_types.is_empty());
                if !gives || refused.iter().any(|(i, t)| i == id && t == cost_type) {
                    continue;
                }
                if let Some(plan) = plan(closure, id, resource, *wanted, cost_type) {
                    return Ok(plan);
                }
            }
        }
    }
    let what = named.map_or_else(|| "no resource in the directory".to_owned(), |id| format!("{id:?}"));
    let service = match wish.service {
        Service::Auto => "",
        Service::Endpoint => " by the endpoint cost service",
        Service::Maps => " by maps",
    };
    Err(Fault::NoResource(format!("{what} gives costs of type {}{service}", wish.cost_type)))
}

fn plan(closure: &Closure, id: &str, resource: &Resource, kind: Kind, cost_type: &CostType) -> Option<Plan> {
    if kind == Kind::Endpoint {
        return Some(Plan::Endpoint {
            id: id.to_owned(),
            url: resource.url.clone(),
            cost_type: cost_type.clone(),
        });
    }
    let is_map = |id: &&String| {
        let found = closure.resources.get(*id);
        found.is_some_and(|r| r.media_type == media::NETWORK_MAP && r.accepts.is_none())
    };
    let network_id = resource.uses.iter().find(is_map).or(closure.default_map.as_ref().filter(is_map))?;
    Some(Plan::Maps {
        network: closure.resources.get(network_id)?.url.clone(),
        network_id: network_id.clone(),
        cost_id: id.to_owned(),
        costs: resource.url.clone(),
        filtered: kind == Kind::Filtered,
        cost_type: cost_type.clone(),
    })
}
