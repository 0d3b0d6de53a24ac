//! `sbe check`, and how a configuration's errors are told.

use std::path::{Path, PathBuf};

use crate::config::{self, Config, ConfigError};

use super::{WRONG, print};

/// Checks a configuration.
pub fn check(named: Option<&Path>) -> u8 {
    match load(named) {
        Ok((path, config)) => {
            print(&format!(
                "{}: good: {} listeners, {} peers, {} routes\n",
                path.display(),
                config.listen.len(),
                config.peers.len(),
                config.routes.len()
            ));
            0
        }
        Err(errors) => {
            for error in errors {
                eprintln!("{error}");
            }
            WRONG
        }
    }
}

/// Finds and reads a configuration; warnings go to the standard error output.
pub fn load(named: Option<&Path>) -> Result<(PathBuf, Config), Vec<ConfigError>> {
    let path = config::find(named).map_err(|e| vec![e])?;
    let (config, warnings) = config::load(&path)?;
    for warning in warnings {
        eprintln!("{warning}");
    }
    Ok((path, config))
}
