"""``archipel export`` writes what ``archipel serve`` reads."""

from typer.testing import CliRunner

from archipel.cli.main import app
from archipel_serve.manifest import read_manifest


def test_a_run_of_the_command_is_exported_with_its_datas_card(tmp_path):
    def archipel(*words):
        done = CliRunner().invoke(app, [str(word) for word in words])
        return done.exit_code, done.output + done.stderr

    run, bundle = tmp_path / "run", tmp_path / "bundle"
    assert archipel("run", "digits-fedavg", "rounds=1", "--out", run)[0] == 0
    status, printed = archipel("export", run, "--out", bundle, "--site", "client-1")
    assert status == 0, printed
    assert "archipel serve" in printed
    manifest = read_manifest(bundle)
    assert (manifest.method, manifest.site) == ("FedAvg", "client-1")
    assert '"notes"' in (bundle / "card.json").read_text()
    status, printed = archipel("export", run, "--out", bundle)
    assert status == 2
    assert "Choose another folder" in printed
    status, printed = archipel("export", run, "--out", tmp_path / "other", "--site", "Atlantis")
    assert status == 2
    assert "There is no client 'Atlantis'" in printed
