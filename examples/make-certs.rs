//! Makes the certificates of `certs/`: a development authority, a node, its core and a peer.
//!
//! `cargo run --example make-certs [DIRECTORY]`. The authority's key is thrown away, so whoever trusts it trusts
//! nothing but what was made with it; to add one, make all anew. None of this is for production.

use std::error::Error;
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};

/// Files, common names for people to read, and the names that count.
const MADE: [(&str, &str, &[&str]); 5] = [
    // The node: its own name, and the domain that peers look for.
    ("sbe", "sbe development node", &["sbe1.example.com", "sip.example.com", "example.com"]),
    // What the node shows to some peers instead.
    ("sp2", "sbe development node, for sp2", &["sbe1.example.com", "example.com"]),
    ("transit-a", "sbe development node, for transit-a", &["sbe1.example.com", "example.com"]),
    // Who is at the other ends.
    ("core", "sbe development core", &["core.example.com"]),
    ("example2.com", "sbe development peer", &["example2.com", "sbe.example2.com"]),
];

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args().nth(1).unwrap_or_else(|| "certs".to_owned());
    let directory = Path::new(&directory);
    fs::create_dir_all(directory)?;
    let key = KeyPair::generate()?;
    let mut authority = params("sbe development authority", &[])?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    fs::write(directory.join("ca.pem"), authority.self_signed(&key)?.pem())?;
    let issuer = Issuer::new(authority, key);
    for (file, title, names) in MADE {
        let key = KeyPair::generate()?;
        let mut wanted = params(title, names)?;
        wanted.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        wanted.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        wanted.use_authority_key_identifier_extension = true;
        fs::write(directory.join(format!("{file}.pem")), wanted.signed_by(&key, &issuer)?.pem())?;
        secret(&directory.join(format!("{file}.key")), &key.serialize_pem())?;
        println!("{file}: {}", names.join(", "));
    }
    Ok(())
}

fn params(title: &str, names: &[&str]) -> Result<CertificateParams, rcgen::Error> {
    let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, title);
    (params.not_before, params.not_after) = (date_time_ymd(2025, 1, 1), date_time_ymd(2125, 1, 1));
    Ok(params)
}

/// Writes a file that others cannot read.
fn secret(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write;
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).open(path)?.write_all(text.as_bytes())
}
