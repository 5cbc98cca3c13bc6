from archipel.drm.bridge.errors import BridgeErrors as BridgeErrors
from archipel.drm.bridge.errors import estimates as estimates
