//! `sbe check`, and how a configuration's errors are told.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::admin::auth;
use crate::config::{self, Config, ConfigError, Warning};
use crate::runtime::secret::{self, SecretError};
use crate::runtime::tls::{Gravity, Setting, Tls};

use super::{WRONG, print};

/// Checks a configuration.
pub fn check(named: Option<&Path>) -> u8 {
    match load(named) {
        Ok((path, config)) => {
            let unfit =
                certificates(&path, &config) + secret_file(&path, &config) + token_files(&path, &config);
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
            for peer in config.peers.iter().filter(|p| !p.source_names.is_empty()) {
                let names: Vec<String> = peer.source_names.iter().map(ToString::to_string).collect();
                print(&format!(
                    "peer \"{}\" may send from the addresses of all servers of {} as the DNS gives them (kept {} beyond \
                     their time while it is down); those of the core and of other peers never\n",
                    peer.name,
                    names.join(", "),
                    config::show_duration(config.dns.stale_ttl),
                ));
            }
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

/// Reads the secret of the dialog tokens as the node will; one that cannot be read has had its warning already.
fn secret_file(path: &Path, config: &Config) -> usize {
    let Some(file) = &config.sip.dialog_secret_file else { return 0 };
    match secret::read(file) {
        Err(error @ SecretError::Short { .. }) => {
            let remedy = "a longer one, say from `openssl rand -hex 32`".to_owned();
            let error =
                config::complaint(path, ("sip", None), "dialog_secret_file", error.to_string(), remedy);
            eprintln!("{error}");
            1
        }
        Ok(_) | Err(SecretError::Read { .. }) => 0,
    }
}

/// Reads the tokens of the admin interface as the node will.
fn token_files(path: &Path, config: &Config) -> usize {
    let files =
        [("token_file", &config.admin_tokens.operator), ("read_token_file", &config.admin_tokens.reader)];
    let mut errors = 0;
    for (key, file) in files {
        let Some(Err(error)) = file.as_deref().map(auth::read) else { continue };
        let remedy = "a file with a token, say from `openssl rand -hex 32`".to_owned();
        eprintln!("{}", config::complaint(path, ("admin", None), key, error.to_string(), remedy));
        errors += 1;
    }
    errors
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
