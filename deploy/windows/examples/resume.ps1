# resume.ps1: bring this VM back into service, even after a partial prepare.ps1. It may run twice.
param([string] $State = "$env:ProgramData\azure-scheduled-events-handshake")
$ErrorActionPreference = 'Stop'

# Add your own commands, for example:
#   Start-Service shop

Remove-Item -LiteralPath "$State\out-of-service" -Force -ErrorAction Ignore
exit 0
