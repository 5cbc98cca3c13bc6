from archipel.serving.bundle import export_bundle as export_bundle
from archipel.serving.graphs import NotExportableError as NotExportableError
