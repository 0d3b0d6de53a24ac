//! A certification authority for one test, and the files of what it issues.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SanType, SerialNumber,
    date_time_ymd,
};

/// A directory that goes with the test.
pub(in crate::runtime) struct Directory(PathBuf);

impl Directory {
    pub(in crate::runtime) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("sbe-tls-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(in crate::runtime) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(in crate::runtime) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub(in crate::runtime) struct Pair {
    pub(in crate::runtime) certificate: String,
    pub(in crate::runtime) key: String,
}

impl Pair {
    pub(in crate::runtime) fn write(&self, directory: &Directory, name: &str) -> (PathBuf, PathBuf) {
        let certificate = directory.write(&format!("{name}.pem"), &self.certificate);
        (certificate, directory.write(&format!("{name}.key"), &self.key))
    }
}

/// What a certificate is to say.
#[derive(Clone)]
pub(in crate::runtime) struct Ask<'a> {
    /// `DNS:x`, `URI:sip:x`, `IP:192.0.2.7`.
    pub(in crate::runtime) names: &'a [&'a str],
    pub(in crate::runtime) cn: &'a str,
    /// Years in which it begins and ends.
    pub(in crate::runtime) years: (i32, i32),
    pub(in crate::runtime) purposes: Vec<ExtendedKeyUsagePurpose>,
    pub(in crate::runtime) serial: u64,
}

impl Default for Ask<'_> {
    fn default() -> Self {
        let purposes = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        Self { names: &[], cn: "somebody", years: (2020, 2090), purposes, serial: 7 }
    }
}

pub(in crate::runtime) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(in crate::runtime) pem: String,
}

impl Authority {
    pub(in crate::runtime) fn new(name: &str) -> Self {
        let params = Self::params(name);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    fn params(name: &str) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2090, 1, 1));
        params
    }

    /// An authority below this one.
    pub(in crate::runtime) fn below(&self, name: &str) -> Self {
        let params = Self::params(name);
        let key = KeyPair::generate().unwrap();
        let pem = params.signed_by(&key, &self.issuer).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    pub(in crate::runtime) fn issue(&self, ask: &Ask<'_>) -> Pair {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, ask.cn);
        params.subject_alt_names = ask.names.iter().map(|n| san(n)).collect();
        params.extended_key_usages = ask.purposes.clone();
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(SerialNumber::from(ask.serial));
        (params.not_before, params.not_after) =
            (date_time_ymd(ask.years.0, 1, 1), date_time_ymd(ask.years.1, 1, 1));
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Pair { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    /// With the usual years, for these names.
    pub(in crate::runtime) fn named(&self, names: &[&str]) -> Pair {
        self.issue(&Ask { names, ..Ask::default() })
    }

    /// A list that revokes these serial numbers.
    pub(in crate::runtime) fn revoke(&self, serials: &[u64]) -> String {
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(2090, 1, 1),
            crl_number: SerialNumber::from(1u64),
            issuing_distribution_point: None,
            revoked_certs: serials
                .iter()
                .map(|n| RevokedCertParams {
                    serial_number: SerialNumber::from(*n),
                    revocation_time: date_time_ymd(2024, 1, 1),
                    reason_code: None,
                    invalidity_date: None,
                })
                .collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).unwrap().pem().unwrap()
    }
}

fn san(name: &str) -> SanType {
    match name.split_once(':').unwrap() {
        ("DNS", name) => SanType::DnsName(name.try_into().unwrap()),
        ("URI", uri) => SanType::URI(uri.try_into().unwrap()),
        ("IP", addr) => SanType::IpAddress(addr.parse().unwrap()),
        _ => panic!("{name}"),
    }
}

/// `[tls]` with these files.
pub(in crate::runtime) fn section(
    files: (PathBuf, PathBuf),
    trust: &Path,
    client_certificates: crate::config::ClientCertificates,
) -> crate::config::Tls {
    crate::config::Tls {
        certificate: files.0,
        key: files.1,
        trust: vec![trust.to_owned()],
        system_trust: false,
        crl: Vec::new(),
        client_certificates,
    }
}
