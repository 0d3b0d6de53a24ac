//! `sbe resolve`: the location of a URI, step by step.

use std::sync::Arc;

use crate::admin::resolve::{Resolution, ResolveError, everything, resolve as look, skips_srv};
use crate::config::{self, Dns};
use crate::peering::Ledger;
use crate::proxy::Policy;
use crate::runtime::dns::{Resolver, ZoneFile};
use crate::runtime::node::enabled;

use super::{NO, Resolve, WRONG, check, print, show};

/// Record sets kept while looking.
const ENTRIES: usize = 10_000;

/// Locates a URI, and prints how.
pub fn resolve(args: &Resolve) -> u8 {
    let policy = match policy(args) {
        Ok(policy) => policy,
        Err(errors) => {
            for error in errors {
                eprintln!("{error}");
            }
            return WRONG;
        }
    };
    let zone = match args.zone.as_deref().map(|file| ZoneFile::read(file, None)).transpose() {
        Ok(zone) => zone.map(Arc::new),
        Err(faults) => {
            for fault in faults {
                eprintln!("{fault}");
            }
            return WRONG;
        }
    };
    match located(args, policy.as_ref(), zone) {
        Ok(resolution) => {
            if args.json {
                print(&format!("{}\n", serde_json::to_string_pretty(&resolution).unwrap_or_default()));
            } else {
                print(&show::resolution(&resolution, skips_srv(&args.uri)));
            }
            if resolution.candidates == 0 { NO } else { 0 }
        }
        Err(error) => {
            eprintln!("{}: {error}", args.uri);
            if error == ResolveError::Tel { NO } else { WRONG }
        }
    }
}

/// The policy of the named configuration, of a usual one if that exists, or none.
fn policy(args: &Resolve) -> Result<Option<Policy>, Vec<config::ConfigError>> {
    if args.config.is_none() && config::find(None).is_err() {
        return Ok(None);
    }
    let (_, config) = check::load(args.config.as_deref())?;
    let ledger = Arc::new(Ledger::new(std::time::Instant::now()));
    // Nothing is sent, so nothing needs a secret.
    Ok(Some(Policy::new(Arc::new(config), ledger, [0; 16], None)))
}

fn located(
    args: &Resolve,
    policy: Option<&Policy>,
    zone: Option<Arc<ZoneFile>>,
) -> Result<Resolution, ResolveError> {
    let mut dns = policy.map_or_else(Dns::default, |p| p.config.dns.clone());
    if let Some(server) = args.server {
        dns.servers = vec![server];
    }
    let enabled = policy.map_or_else(|| everything(&dns), enabled);
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("no event loop: {error}");
            std::process::exit(i32::from(NO));
        }
    };
    runtime.block_on(async {
        let handle = tokio::runtime::Handle::current();
        let resolver = match &zone {
            None => Resolver::new(&dns, enabled, ENTRIES, handle),
            Some(zone) => Resolver::with_upstream(zone.clone(), &dns, enabled, ENTRIES, handle),
        };
        let mut resolution =
            look(&args.uri, policy, &resolver, None, &args.what_if.clone().unwrap_or_default()).await?;
        if let Some(zone) = zone {
            resolution.notes.extend(zone.warnings().iter().map(ToString::to_string));
            resolution.notes.extend(zone.outside().iter().map(|name| {
                format!(
                    "{name} is outside of the zones in {}: taken as a name that does not exist",
                    zone.file()
                )
            }));
        }
        Ok(resolution)
    })
}
