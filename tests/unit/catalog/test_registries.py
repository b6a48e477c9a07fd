from importlib.resources import files

import pytest
import yaml

from builder import catalog
from builder.catalog import RegistryLimits, registries, registry_limits


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("ghcr.io", "github"),
        ("GHCR.io:443", "github"),
        ("123456789012.dkr.ecr.eu-west-1.amazonaws.com", "amazon-ecr"),
        ("public.ecr.aws", "amazon-ecr-public"),
        ("europe-west4-docker.pkg.dev", "google-artifact-registry"),
        ("mine.azurecr.io", "azure"),
        ("registry-1.docker.io", "docker-hub"),
        ("quay.io", "quay"),
        ("nvcr.io", "nvidia-ngc"),
        ("localhost:5000", "local"),
        ("127.0.0.1:5000", "local"),
        ("[::1]:5000", "local"),
    ],
)
def test_a_registry_is_known_by_its_host(host: str, name: str) -> None:
    limits = registry_limits(host)
    assert limits is not None
    assert limits.name == name


@pytest.mark.parametrize("host", ["registry.example.com", "notghcr.io", "ghcr.io.example.com", "amazonaws.com", ""])
def test_another_host_has_no_known_limits(host: str) -> None:
    assert registry_limits(host) is None


# GitHub's documentation: 10 GB per layer, 10 minutes per upload. The layers are an 8B model in bf16, whole and halved.
def test_github_takes_layers_of_ten_gigabytes() -> None:
    assert registries()["github"].largest_layer_bytes == 10_000_000_000


def test_the_needed_rate_is_the_layer_over_the_time_of_an_upload() -> None:
    rate = registries()["github"].min_bytes_per_second(8_030_261_248)
    assert rate is not None
    assert round(rate / 1e6, 1) == 13.4


def test_a_registry_without_a_time_limit_asks_for_no_rate() -> None:
    assert registries()["azure"].min_bytes_per_second(8_030_261_248) is None


def test_parts_limit_a_layer_where_no_other_limit_does() -> None:
    distribution = registries()["distribution-s3"]
    assert distribution.max_layer_bytes is None
    assert distribution.largest_layer_bytes == 104_857_600_000


def test_the_smaller_of_two_limits_holds() -> None:
    limits = RegistryLimits("x", max_layer_bytes=1000, max_part_bytes=100, max_parts=5)
    assert limits.largest_layer_bytes == 500
    assert registries()["amazon-ecr"].largest_layer_bytes == 52_000 * 2**20


def test_an_unknown_limit_forbids_nothing() -> None:
    assert registries()["docker-hub"].largest_layer_bytes is None


def test_what_no_source_states_is_none() -> None:
    assert registries()["google-artifact-registry"].chunked is False
    assert registries()["github"].referrers is False
    assert registries()["docker-hub"].chunked is None
    assert registries()["docker-hub"].referrers is None


def test_every_fact_of_a_registry_has_a_source_with_a_date() -> None:
    sheet = yaml.safe_load(files(catalog).joinpath("registries.yaml").read_text())
    for name, entry in sheet.items():
        assert all(2025 <= source["date"].year <= 2026 and source["source"] for source in entry["sources"])
        covered = {fact.strip() for source in entry["sources"] for fact in source["fact"].split(",")}
        facts = {fact for fact, value in entry.items() if fact not in ("sources", "note") and value != []}
        assert facts <= covered, f"{name}: {facts - covered}"
