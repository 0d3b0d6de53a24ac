//! What the system says of this process, from `/proc`. What cannot be read is left out.

use std::fs;
use std::time::Duration;

/// Ticks of `/proc/PID/stat` per second: part of the Linux ABI.
const TICKS: u64 = 100;

/// Memory, descriptors and time of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Process {
    /// Resident memory, octets.
    pub resident: Option<u64>,
    /// Virtual memory, octets.
    pub virtual_memory: Option<u64>,
    /// Open file descriptors.
    pub descriptors: Option<u64>,
    /// And how many there may be.
    pub max_descriptors: Option<u64>,
    /// CPU time used, in user and system mode.
    pub cpu: Option<Duration>,
    /// Threads.
    pub threads: Option<u64>,
}

impl Process {
    /// Looks now.
    pub fn look() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        Self {
            resident: number(&status, "VmRSS:").map(|kb| kb * 1024),
            virtual_memory: number(&status, "VmSize:").map(|kb| kb * 1024),
            // The directory itself is open while it is read.
            descriptors: fs::read_dir("/proc/self/fd").ok().map(|d| (d.count() as u64).saturating_sub(1)),
            max_descriptors: number(&limits, "Max open files"),
            cpu: cpu(&stat),
            threads: number(&status, "Threads:"),
        }
    }
}

/// The first number after a name at the start of a line.
fn number(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Fields 14 and 15 of `/proc/PID/stat`; the second field may hold anything, in brackets.
fn cpu(stat: &str) -> Option<Duration> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let ticks = fields.next()?.parse::<u64>().ok()?.checked_add(fields.next()?.parse().ok()?)?;
    Some(Duration::from_millis(ticks.checked_mul(1000 / TICKS)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_descriptors_and_threads() {
        let process = Process::look();
        assert!(process.resident.is_some_and(|n| n > 100_000), "{process:?}");
        assert!(process.descriptors.is_some_and(|n| n >= 3), "{process:?}");
        assert!(process.threads.is_some_and(|n| n >= 1), "{process:?}");
        assert!(process.cpu.is_some(), "{process:?}");
    }

    #[test]
    fn cpu_time_is_read_past_a_hostile_program_name() {
        let stat = "1 (a) b 9 9) S 1 1 1 0 -1 4194560 1 2 3 4 250 50 0 0 20 0 4 0 1 1 1";
        assert_eq!(cpu(stat), Some(Duration::from_secs(3)));
        assert_eq!(cpu("nonsense"), None);
    }
}
