//! What can come of starting a node, and of reading its configuration again.

use crate::config::{ConfigError, Warning};

use super::call_records::RecordsError;
use super::tls::FileError;
use super::{StartError, secret};

/// Why a node could not be started.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The sockets or threads.
    #[error(transparent)]
    Start(#[from] StartError),
    /// `dialog_secret_file`.
    #[error(transparent)]
    Secret(#[from] secret::SecretError),
    /// `[records]`.
    #[error(transparent)]
    Records(#[from] RecordsError),
    /// `[hep]`.
    #[error("[hep] server: {0}")]
    Hep(std::io::Error),
    /// The system's random numbers.
    #[error("no random numbers from the system: {0}")]
    Random(String),
}

/// Why a configuration was not taken over. The one in force stays.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The node was not started from a file.
    #[error("this node was not started from a file")]
    NoFile,
    /// It has errors.
    #[error("the configuration has {} errors", .0.len())]
    Config(Vec<ConfigError>),
    /// A certificate, key, list of authorities or revocation list cannot serve.
    #[error(transparent)]
    Tls(#[from] FileError),
}

/// What a reload has done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reloaded {
    /// Warnings about the new configuration.
    pub warnings: Vec<Warning>,
    /// Changes that take a restart to apply; the old values stay in force.
    pub restart_needed: Vec<&'static str>,
}
