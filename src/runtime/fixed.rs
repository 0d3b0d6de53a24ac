//! What of a configuration takes a restart to change.

use crate::config::{Config, Listen};

/// Keeps what is fixed from the start on, and says which of it was to change.
pub(super) fn keep_fixed(config: &mut Config, before: &Config, bound: &[Listen]) -> Vec<&'static str> {
    let mut changed = Vec::new();
    let same = |l: &Listen, b: &Listen| {
        let port = l.bind.port() == b.bind.port() || l.bind.port() == 0;
        Listen { bind: b.bind, ..l.clone() } == *b && port && l.bind.ip() == b.bind.ip()
    };
    if config.listen.len() != bound.len() || !config.listen.iter().zip(bound).all(|(l, b)| same(l, b)) {
        changed.push("[[listen]]");
    }
    config.listen = bound.to_vec();
    let (sip, old) = (&mut config.sip, &before.sip);
    let mut fixed = |name, differs: bool| {
        if differs {
            changed.push(name);
        }
    };
    fixed("sip.idle_timeout", sip.idle_timeout != old.idle_timeout);
    fixed("sip.message_timeout", sip.message_timeout != old.message_timeout);
    fixed("sip.connect_timeout", sip.connect_timeout != old.connect_timeout);
    fixed("sip.max_message", sip.max_message != old.max_message);
    fixed("sip.max_headers", sip.max_headers != old.max_headers);
    fixed("sip.max_header", sip.max_header != old.max_header);
    fixed("sip.dialog_secret_file", sip.dialog_secret_file != old.dialog_secret_file);
    fixed("runtime.workers", config.runtime.workers != before.runtime.workers);
    fixed("limits.connections", config.limits.connections != before.limits.connections);
    fixed("limits.write_queue", config.limits.write_queue != before.limits.write_queue);
    fixed("limits.dns_entries", config.limits.dns_entries != before.limits.dns_entries);
    fixed("[log]", config.log != before.log);
    fixed("[records]", config.records != before.records);
    fixed("[hep]", config.hep != before.hep);
    fixed("admin.bind", config.admin != before.admin);
    sip.idle_timeout = old.idle_timeout;
    sip.message_timeout = old.message_timeout;
    sip.connect_timeout = old.connect_timeout;
    sip.max_message = old.max_message;
    sip.max_headers = old.max_headers;
    sip.max_header = old.max_header;
    sip.dialog_secret_file.clone_from(&old.dialog_secret_file);
    config.runtime.workers = before.runtime.workers;
    config.limits.connections = before.limits.connections;
    config.limits.write_queue = before.limits.write_queue;
    config.limits.dns_entries = before.limits.dns_entries;
    config.log.clone_from(&before.log);
    config.records.clone_from(&before.records);
    config.hep.clone_from(&before.hep);
    config.admin = before.admin;
    changed
}
