//! `sbe check`, and how a configuration's errors are told.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::config::{self, Config, ConfigError, Warning};
use crate::runtime::tls::{Gravity, Setting, Tls};

use super::{WRONG, print};

/// Checks a configuration.
pub fn check(named: Option<&Path>) -> u8 {
    match load(named) {
        Ok((path, config)) => {
            let unfit = certificates(&path, &config);
            if unfit > 0 {
                return WRONG;
            }
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

/// Looks at certificates, keys and lists as the node will; returns how many errors it has told. What cannot be
/// read has had its warning already.
fn certificates(path: &Path, config: &Config) -> usize {
    let mut errors = 0;
    for found in Tls::check(config, SystemTime::now()) {
        let (table, key) = match &found.setting {
            Setting::Certificate => (("tls", None), "certificate"),
            Setting::Key => (("tls", None), "key"),
            Setting::Trust => (("tls", None), "trust"),
            Setting::Crl => (("tls", None), "crl"),
            Setting::PeerCertificate(name) => (("peer", Some(name.as_str())), "certificate"),
            Setting::PeerKey(name) => (("peer", Some(name.as_str())), "key"),
        };
        let what = format!("{}: {}", found.file.display(), found.what);
        let error = config::complaint(path, table, key, what, found.remedy);
        match found.gravity {
            Gravity::Missing => {}
            Gravity::Soon => {
                let ConfigError { file, line, column, what, remedy } = error;
                eprintln!("{}", Warning { file, line, column, what, remedy });
            }
            Gravity::Unusable | Gravity::Unfit => {
                errors += 1;
                eprintln!("{error}");
            }
        }
    }
    errors
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
